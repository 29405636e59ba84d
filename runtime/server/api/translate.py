"""From the API's requests to the engine's."""

from __future__ import annotations

from types import MappingProxyType

from duckfleet.runtime.engine import GenerationRequest, InvalidRequest, SamplingParams
from duckfleet.runtime.server.api.errors import api_error, invalid
from duckfleet.runtime.server.api.schema import ChatRequest, CompletionRequest, SamplingFields
from duckfleet.runtime.server.settings import SamplingDefaults

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions
Prompts = tuple[tuple[int, ...], ...]


def chat_sampling(request: ChatRequest, defaults: SamplingDefaults) -> SamplingParams:
    """`defaults` are for what the request leaves out. Raises `ApiError` for fields that contradict each other."""
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' are the same limit: give one of them.")
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    max_tokens = request.max_completion_tokens if request.max_tokens is None else request.max_tokens
    return _sampling(request, max_tokens, (request.top_logprobs or 0) if request.logprobs else None, defaults)


def completion_sampling(request: CompletionRequest, defaults: SamplingDefaults) -> SamplingParams:
    """`defaults` are for what the request leaves out. Raises `ApiError` for fields that contradict each other."""
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    return _sampling(request, max_tokens, request.logprobs, defaults)


def chat_generation(request: ChatRequest, sampling: SamplingParams, prompt: tuple[int, ...]) -> GenerationRequest:
    """Raises `ApiError` when prompts and choices are too many."""
    return _generation((prompt,), sampling, request.n or 1, "messages", score_prompt=False)


def completion_generation(request: CompletionRequest, sampling: SamplingParams, prompts: Prompts) -> GenerationRequest:
    """Raises `ApiError` when prompts and choices are too many."""
    score_prompt = bool(request.echo) and request.logprobs is not None
    return _generation(prompts, sampling, request.n or 1, "prompt", score_prompt=score_prompt)


def _generation(
    prompts: Prompts, sampling: SamplingParams, n: int, prompt_param: str, *, score_prompt: bool
) -> GenerationRequest:
    try:
        return GenerationRequest(prompts, sampling, n, score_prompt)
    except InvalidRequest as error:
        raise api_error(error, prompt_param) from None


def _sampling(
    request: SamplingFields, max_tokens: int | None, logprobs: int | None, defaults: SamplingDefaults
) -> SamplingParams:
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "'stream_options' needs 'stream' to be true.")
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    try:
        return SamplingParams(
            temperature=_or(request.temperature, defaults.temperature),
            top_k=defaults.top_k if request.top_k is None else max(request.top_k, 0),
            top_p=_or(request.top_p, defaults.top_p),
            min_p=_or(request.min_p, defaults.min_p),
            repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            presence_penalty=_or(request.presence_penalty, 0.0),
            logit_bias=MappingProxyType(_logit_bias(request.logit_bias or {})),
            seed=request.seed,
            stop=stop,
            max_tokens=max_tokens,
            logprobs=logprobs,
        )
    except InvalidRequest as error:
        raise api_error(error, "prompt") from None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(biases: dict[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key):
            raise invalid("logit_bias", "Invalid 'logit_bias': its keys must be token ids, as strings of digits.")
        by_id[int(key)] = bias
    return by_id
