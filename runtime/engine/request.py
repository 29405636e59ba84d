"""What is asked of the engine and what it hands back: frozen records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from duckfleet.runtime.engine.errors import InvalidRequest

FinishReason = Literal["stop", "length"]

MAX_STOP_STRINGS = 16
MAX_STOP_LEN = 1024  # characters of one stop string
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_LOGIT_BIASES = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop.

    The order of the steps is that of `duckfleet.runtime.engine.sampler`. Out-of-range values raise `InvalidRequest`.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and completion
    frequency_penalty: float = 0.0  # over the completion
    presence_penalty: float = 0.0  # over the completion
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None  # None: a fresh one
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None  # None: as many as the context holds
    logprobs: int | None = None  # None: off; else so many alternatives beside the drawn token

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 2.0)
        _in_range("top_k", self.top_k, 0, 2**31 - 1)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequest(
                "logit_bias", f"{len(self.logit_bias)} entries; at most {MAX_LOGIT_BIASES} may be given"
            )
        for bias in self.logit_bias.values():
            _in_range("logit_bias", bias, -100.0, 100.0)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), 2**63 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest("stop", f"{len(self.stop)} stop strings; at most {MAX_STOP_STRINGS} may be given")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_LEN:
                raise InvalidRequest(
                    "stop", f"a stop string has 1 to {MAX_STOP_LEN} characters, this one has {len(text)}"
                )
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 0, 2**31 - 1)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One client's request: `n` completions of each prompt, served together in one place of the queue.

    Choice `i` belongs to prompt `i // n`. Choices are served one after another over one KV cache.
    """

    prompts: tuple[tuple[int, ...], ...]  # token ids, none empty
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    score_prompt: bool = False  # log probabilities of the prompt's own tokens as well

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InvalidRequest("prompts", "there is no prompt")
        if any(not prompt for prompt in self.prompts):
            raise InvalidRequest("prompts", "a prompt has no tokens")
        if not 1 <= self.n <= MAX_CHOICES:
            raise InvalidRequest("n", f"must be between 1 and {MAX_CHOICES}, not {self.n}")
        if self.num_choices > MAX_CHOICES:
            raise InvalidRequest(
                "n",
                f"{len(self.prompts)} prompts with n={self.n} are {self.num_choices} choices; at most {MAX_CHOICES}",
            )

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class TokenAlternative:
    """A token that could have been drawn, with the natural log of its probability under the model alone."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token: probability under the model's own logits, before bias, penalties and temperature."""

    token_id: int
    logprob: float
    top: tuple[TokenAlternative, ...]  # most likely first


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One step of one choice.

    `text` is what may be shown now; it lags behind the tokens where a character is not complete or where the text
    may turn out to be a stop string. `logprobs` cover the tokens that are wholly shown by now.
    """

    choice: int
    token_id: int | None  # None: nothing was drawn (max_tokens is 0)
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_string: str | None = None  # the one that ended the choice
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # first event of a scored prompt; [0] is None


@dataclass(frozen=True, slots=True)
class GenerationMetrics:
    """What a request cost, up to now or to its end. The four parts are summed over all of its forwards."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0  # from submit to the first forward
    ttft_s: float | None = None  # from submit to the first token
    decode_s: float = 0.0  # from the first token to the last
    num_forwards: int = 0  # forwards of the decoder, prefill chunks included
    forward_s: float = 0.0
    prepare_us: float = 0.0
    send_us: float = 0.0
    wait_us: float = 0.0
    fetch_us: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate: tokens after the first, over the time since the first."""
        if self.completion_tokens < 2 or self.decode_s <= 0.0:
            return None
        return (self.completion_tokens - 1) / self.decode_s


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high) or math.isnan(value):
        raise InvalidRequest(name, f"must be between {low:g} and {high:g}, not {value:g}")
