"""From logits to a token.

The order of the steps: logit bias, repetition penalty, frequency and presence penalty, temperature, top-k, top-p,
min-p, draw. It is that of `transformers` where both have the step. Ties go to the lower token id; candidates that tie
with the last one of top-k stay, as in `transformers`. Reported log probabilities are the model's own, before any step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from duckfleet.runtime.engine.errors import UnusableLogits
from duckfleet.runtime.engine.request import SamplingParams, TokenAlternative, TokenLogprob

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Sampler:
    """Draws the tokens of one choice. Equal parameters, seed, choice and logits give equal tokens."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int, choice: int = 0) -> None:
        """`choice` tells apart the completions of one prompt. Ids outside the vocabulary have no effect."""
        self._params = params
        entropy = int.from_bytes(os.urandom(16), "little") if params.seed is None else params.seed % 2**64
        self._random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([entropy, choice])))
        self._bias_ids, self._bias_values = _bias(params.logit_bias, vocab_size)
        self._num_drawn: dict[int, int] | None = {} if _counts(params) else None
        self._seen = np.zeros(vocab_size, dtype=bool) if params.repetition_penalty != 1.0 else None
        if self._seen is not None:
            self._seen[[token for token in prompt if 0 <= token < vocab_size]] = True

    def draw(self, logits: F32) -> int:
        """The next token from `logits` [vocab] f32, which stay as they are. Raises `UnusableLogits`."""
        top = float(logits.max(initial=-np.inf))
        if not np.isfinite(top):  # NaN propagates through max
            raise UnusableLogits(f"the largest of {logits.size} logits is {top}")
        if not self._changes_logits and self._params.temperature == 0.0:
            token = int(logits.argmax())
        else:
            scores = self._adjusted(logits)
            token = int(scores.argmax()) if self._params.temperature == 0.0 else self._draw(scores)
        if self._num_drawn is not None:
            self._num_drawn[token] = self._num_drawn.get(token, 0) + 1
        if self._seen is not None:
            self._seen[token] = True
        return token

    @property
    def _changes_logits(self) -> bool:
        return self._bias_ids.size > 0 or self._num_drawn is not None or self._seen is not None

    def _adjusted(self, logits: F32) -> F64:
        scores = logits.astype(np.float64)
        scores[self._bias_ids] += self._bias_values
        if self._seen is not None:
            seen = scores[self._seen]
            penalty = self._params.repetition_penalty
            scores[self._seen] = np.where(seen > 0, seen / penalty, seen * penalty)  # Keskar et al. 2019 (CTRL), 4.1
        if self._num_drawn:
            drawn = np.fromiter(self._num_drawn, np.int64, len(self._num_drawn))
            counts = np.fromiter(self._num_drawn.values(), np.float64, len(self._num_drawn))
            scores[drawn] -= self._params.frequency_penalty * counts + self._params.presence_penalty
        return scores

    def _draw(self, scores: F64) -> int:
        ids, weights = candidates(scores, self._params)
        edges = weights.cumsum()
        mark = min(self._random.random() * edges[-1], np.nextafter(edges[-1], 0.0))
        place = int(edges.searchsorted(mark, side="right"))
        return place if ids is None else int(ids[place])


def candidates(scores: F64, params: SamplingParams) -> tuple[I64 | None, F64]:
    """Tokens that may be drawn, ids [k], and their weights [k], which do not sum to 1. The order is reproducible.

    Ids of None are all, in their order: a vocabulary is large enough that each pass over it can be felt. `scores`
    [vocab] are finite at their maximum; `params.temperature` is above 0.
    """
    ids: I64 | None = None
    kept = scores
    if 0 < params.top_k < scores.size:
        ids = np.flatnonzero(scores >= _kth_largest(scores, params.top_k))
        kept = scores[ids]
    weights = kept - scores.max()
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        weights /= params.temperature
    np.exp(weights, out=weights)
    if params.top_p < 1.0:
        chosen = _nucleus(weights, params.top_p)
        ids, weights = chosen if ids is None else ids[chosen], weights[chosen]
    if params.min_p > 0.0:
        chosen = np.flatnonzero(weights >= params.min_p * weights.max())
        ids, weights = chosen if ids is None else ids[chosen], weights[chosen]
    return ids, weights


def _nucleus(weights: F64, top_p: float) -> I64:
    """The fewest places, heaviest first, whose share of the weight reaches `top_p`; at least one.

    Places whose weight is under (1 - top_p) / size of the whole weigh less than 1 - top_p together, so none of them is
    needed: mostly a few are left to sort, out of a vocabulary whose sorting costs more than a small forward.
    """
    total = weights.sum()
    falling = np.sort(weights[weights >= (1.0 - top_p) * total / weights.size])[::-1]
    count = min(int(falling.cumsum().searchsorted(top_p * total)) + 1, falling.size)
    least = falling[count - 1]
    heavier = np.flatnonzero(weights > least)
    tied = np.flatnonzero(weights == least)[: count - heavier.size]
    return np.concatenate((heavier, tied))


def _kth_largest(values: npt.NDArray[np.floating], k: int) -> float:
    return float(np.partition(values, values.size - k)[values.size - k])


def log_softmax(logits: F32) -> F64:
    """Natural log of the model's probabilities, [vocab] f64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    result: F64 = shifted - np.log(np.exp(shifted).sum())
    return result


def token_logprob(logits: F32, token_id: int, num_top: int) -> TokenLogprob:
    """The probability of a token under `logits` [vocab], and the `num_top` most likely ones."""
    logprobs = log_softmax(logits)
    num_top = min(num_top, logprobs.size)
    best: Sequence[int] = ()
    if num_top:
        tied = np.flatnonzero(logits >= _kth_largest(logits, num_top))
        best = tied[np.argsort(-logits[tied], kind="stable")][:num_top].tolist()
    top = tuple(TokenAlternative(token, float(logprobs[token])) for token in best)
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def _counts(params: SamplingParams) -> bool:
    return params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def _bias(biases: Mapping[int, float], vocab_size: int) -> tuple[I64, F64]:
    known = {token: bias for token, bias in biases.items() if 0 <= token < vocab_size and bias != 0.0}
    return np.fromiter(known, np.int64, len(known)), np.fromiter(known.values(), np.float64, len(known))
