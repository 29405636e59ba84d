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

_FIRST_CANDIDATES = 1024  # top-p sorts so many first: sorting a vocabulary of 129k costs more than a small forward


class Sampler:
    """Draws the tokens of one choice. Equal parameters, seed, choice and logits give equal tokens."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int, choice: int = 0) -> None:
        """`choice` tells apart the completions of one prompt. Ids outside the vocabulary have no effect."""
        self._params = params
        entropy = int.from_bytes(os.urandom(16), "little") if params.seed is None else params.seed % 2**64
        self._random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([entropy, choice])))
        self._bias_ids, self._bias_values = _bias(params.logit_bias, vocab_size)
        self._num_drawn = np.zeros(vocab_size, dtype=np.int32) if _counts(params) else None
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
            self._num_drawn[token] += 1
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
        if self._num_drawn is not None:
            scores -= self._params.frequency_penalty * self._num_drawn
            scores -= self._params.presence_penalty * (self._num_drawn > 0)
        return scores

    def _draw(self, scores: F64) -> int:
        ids, probabilities = candidates(scores, self._params)
        edges = probabilities.cumsum()
        mark = min(self._random.random() * edges[-1], np.nextafter(edges[-1], 0.0))
        return int(ids[edges.searchsorted(mark, side="right")])


def candidates(scores: F64, params: SamplingParams) -> tuple[I64, F64]:
    """Tokens that may be drawn, ids [k], and their weights [k], which do not sum to 1. The order is reproducible.

    `scores` [vocab] are finite at their maximum; `params.temperature` is above 0.
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        scaled = (scores - scores.max()) / params.temperature
    ids = np.arange(scores.size)
    if 0 < params.top_k < scores.size:
        threshold = np.partition(scaled, scores.size - params.top_k)[scores.size - params.top_k]
        ids = ids[scaled >= threshold]
    weights = np.exp(scaled[ids])
    if params.top_p < 1.0:
        ids, weights = _nucleus(ids, weights, params.top_p)
    if params.min_p > 0.0:
        keep = weights >= params.min_p * weights.max()
        ids, weights = ids[keep], weights[keep]
    return ids, weights


def _nucleus(ids: I64, weights: F64, top_p: float) -> tuple[I64, F64]:
    """The fewest tokens, most likely first, whose share of the weight reaches `top_p`; at least one."""
    wanted = top_p * weights.sum()
    num_sorted = min(_FIRST_CANDIDATES, ids.size)
    while True:
        if num_sorted < ids.size:
            threshold = np.partition(weights, ids.size - num_sorted)[ids.size - num_sorted]
            best = np.flatnonzero(weights >= threshold)
        else:
            best = np.arange(ids.size)
        best = best[np.argsort(-weights[best], kind="stable")]
        edges = weights[best].cumsum()
        if edges[-1] >= wanted or best.size == ids.size:
            count = min(int(edges.searchsorted(wanted, side="left")) + 1, best.size)
            return ids[best[:count]], weights[best[:count]]
        num_sorted *= 8


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
        threshold = np.partition(logits, logits.size - num_top)[logits.size - num_top]
        tied = np.flatnonzero(logits >= threshold)
        best = tied[np.argsort(-logits[tied], kind="stable")][:num_top].tolist()
    top = tuple(TokenAlternative(token, float(logprobs[token])) for token in best)
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def _counts(params: SamplingParams) -> bool:
    return params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def _bias(biases: Mapping[int, float], vocab_size: int) -> tuple[I64, F64]:
    known = {token: bias for token, bias in biases.items() if 0 <= token < vocab_size and bias != 0.0}
    return np.fromiter(known, np.int64, len(known)), np.fromiter(known.values(), np.float64, len(known))
