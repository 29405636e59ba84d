"""One completion while it grows: draw, turn into text, decide whether it ends."""

from __future__ import annotations

from collections import deque

from duckfleet.runtime.engine.detokenizer import IncrementalDetokenizer
from duckfleet.runtime.engine.request import FinishReason, SamplingParams, TokenEvent, TokenLogprob
from duckfleet.runtime.engine.sampler import F32, Sampler, token_logprob
from duckfleet.runtime.engine.stop_strings import StopScanner
from duckfleet.runtime.engine.token_bytes import TokenBytes


class Choice:
    """Turns logits into `TokenEvent`s until the last one has a finish reason."""

    def __init__(
        self,
        index: int,
        sampler: Sampler,
        params: SamplingParams,
        token_bytes: TokenBytes,
        eos_token_ids: frozenset[int],
        max_tokens: int,
    ) -> None:
        self._index = index
        self._sampler = sampler
        self._num_top = params.logprobs
        self._detokenizer = IncrementalDetokenizer(token_bytes)
        self._scanner = StopScanner(params.stop)
        self._eos_token_ids = eos_token_ids
        special = {token_bytes.special_id(stop): stop for stop in params.stop}
        self._stop_tokens = {token: stop for token, stop in special.items() if token is not None}
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._text_len = 0  # complete characters, shown or held back
        self._shown_len = 0
        self._held_logprobs: deque[tuple[int, TokenLogprob]] = deque()  # shown once so many characters are

    def step(self, logits: F32) -> TokenEvent:
        """Draw from `logits` [vocab] f32. A completion of no tokens has one event without a token."""
        if self._max_tokens == 0:
            return TokenEvent(self._index, None, "", finish_reason="length")
        token = self._sampler.draw(logits)
        self._num_tokens += 1
        if token in self._eos_token_ids or token in self._stop_tokens:
            return self._last(token, "", "stop", self._stop_tokens.get(token))
        text = self._detokenizer.push(token)
        self._text_len += len(text)
        if self._num_top is not None:
            complete_at = self._text_len + (self._detokenizer.num_pending_bytes > 0)
            self._held_logprobs.append((complete_at, token_logprob(logits, token, self._num_top)))
        scanned = self._scanner.push(text)
        self._shown_len += len(scanned.text)
        if scanned.stop is not None:
            return TokenEvent(self._index, token, scanned.text, self._shown_logprobs(), "stop", scanned.stop)
        if self._num_tokens >= self._max_tokens:
            return self._last(token, scanned.text, "length", None)
        return TokenEvent(self._index, token, scanned.text, self._shown_logprobs())

    def _last(self, token: int, text: str, reason: FinishReason, stop: str | None) -> TokenEvent:
        """The text ends here by itself: what was held back is text after all."""
        self._detokenizer.flush()
        text += self._scanner.flush()
        logprobs = tuple(entry for _, entry in self._held_logprobs)
        return TokenEvent(self._index, token, text, logprobs, reason, stop)

    def _shown_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of tokens whose last character is shown: the others would tell of text that may have to be hidden."""
        shown = []
        while self._held_logprobs and self._held_logprobs[0][0] <= self._shown_len:
            shown.append(self._held_logprobs.popleft()[1])
        return tuple(shown)
