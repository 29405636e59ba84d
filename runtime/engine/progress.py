"""A request on its way through the decoder: what to feed next, and what the logits made of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from duckfleet.runtime.engine.choice import Choice
from duckfleet.runtime.engine.request import GenerationRequest, TokenEvent, TokenLogprob
from duckfleet.runtime.engine.sampler import F32, Sampler, token_logprob
from duckfleet.runtime.engine.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the served model allows."""

    ctx_len: int  # tokens of prompt and completion together
    vocab_size: int
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Feed:
    """The next forward of one sequence."""

    tokens: tuple[int, ...]
    cache_len: int  # positions of the cache that stay; the rest is rolled back first
    all_logits: bool  # logits of every token, not of the last one alone


class Progress:
    """Steps through the prompts and choices of a request over one KV cache.

    The prompt is fed once, in chunks; each of its `n` completions starts from the prompt's last logits, with the cache
    rolled back to the prompt.
    """

    def __init__(
        self, request: GenerationRequest, limits: ModelLimits, token_bytes: TokenBytes, prefill_chunk_len: int
    ) -> None:
        self._request = request
        self._limits = limits
        self._token_bytes = token_bytes
        self._chunk_len = prefill_chunk_len
        self._choice_index = 0
        self._choice: Choice | None = None  # None: the prompt is still being fed
        self._cache_len = 0
        self._last_token = 0
        self._prompt_logits: F32 | None = None  # [vocab], after the prompt's last token
        self._prompt_logprobs: list[TokenLogprob | None] = [None]
        self.done = False

    @property
    def _prompt(self) -> tuple[int, ...]:
        return self._request.prompts[self._choice_index // self._request.n]

    def next_feed(self) -> Feed:
        """What to run next; meaningless once `done`."""
        if self._choice is not None:
            return Feed((self._last_token,), self._cache_len, all_logits=False)
        chunk = self._prompt[self._cache_len : self._cache_len + self._chunk_len]
        return Feed(chunk, self._cache_len, self._request.score_prompt)

    def accept(self, feed: Feed, logits: F32) -> list[TokenEvent]:
        """Logits of `feed`, [len(tokens) or 1, vocab] f32, which are not kept."""
        self._cache_len = feed.cache_len + len(feed.tokens)
        if self._choice is not None:
            return self._advance(logits[-1])
        prompt = self._prompt
        if self._request.score_prompt:
            self._score(prompt[feed.cache_len + 1 :], logits)
        if self._cache_len < len(prompt):
            return []
        self._prompt_logits = logits[-1].copy()
        self._choice = self._new_choice()
        return self._advance(self._prompt_logits)

    def _score(self, targets: Sequence[int], logits: F32) -> None:
        num_top = self._request.sampling.logprobs or 0
        for row, target in zip(logits, targets, strict=False):  # the last row of the prompt has no target
            self._prompt_logprobs.append(token_logprob(row, target, num_top))

    def _new_choice(self) -> Choice:
        sampling, prompt = self._request.sampling, self._prompt
        room = self._limits.ctx_len - len(prompt)
        sampler = Sampler(sampling, prompt, self._limits.vocab_size, self._choice_index % self._request.n)
        max_tokens = room if sampling.max_tokens is None else sampling.max_tokens
        return Choice(self._choice_index, sampler, sampling, self._token_bytes, self._limits.eos_token_ids, max_tokens)

    def _advance(self, logits: F32) -> list[TokenEvent]:
        """Draw one token, and go on to the next choices as far as that needs no forward."""
        events = []
        while True:
            assert self._choice is not None
            event = self._choice.step(logits)
            if self._request.score_prompt and self._choice_index % self._request.n == 0 and self._prompt_logprobs:
                event = replace(event, prompt_logprobs=tuple(self._prompt_logprobs))
                self._prompt_logprobs = []
            events.append(event)
            if event.finish_reason is None:
                assert event.token_id is not None
                self._last_token = event.token_id
                return events
            self._choice_index += 1
            if self._choice_index == self._request.num_choices:
                self.done = True
                return events
            if self._choice_index % self._request.n == 0:
                self._start_prompt()
                return events
            assert self._prompt_logits is not None
            self._choice, self._cache_len, logits = self._new_choice(), len(self._prompt), self._prompt_logits

    def _start_prompt(self) -> None:
        self._choice, self._cache_len = None, 0
        self._prompt_logits, self._prompt_logprobs = None, [None]
