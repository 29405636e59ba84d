"""Request bodies. Types are strict, fields that are not listed are refused, null means the default.

Sources: OpenAI's API reference for `/v1/chat/completions` and `/v1/completions`; `top_k`, `min_p` and
`repetition_penalty` are spelt as other servers of open models spell them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from duckfleet.runtime.engine.request import MAX_CHOICES, MAX_STOP_LEN, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS

_MAX_COUNT = 2**31 - 1
MAX_MESSAGES = 4096
MAX_METADATA_PAIRS = 16

# Names of the forms that a value may take: they appear in pydantic's locations and are no part of the client's path.
FORM_STRING, FORM_STRINGS, FORM_PARTS = "(a string)", "(a list of strings)", "(a list of text parts)"
FORM_TOKENS, FORM_TOKEN_LISTS, FORM_NULL = "(a list of token ids)", "(a list of lists of token ids)", "(null)"
FORMS = frozenset({FORM_STRING, FORM_STRINGS, FORM_PARTS, FORM_TOKENS, FORM_TOKEN_LISTS, FORM_NULL})


def _form_of_stop(value: Any) -> str | None:
    match value:
        case str():
            return FORM_STRING
        case list():
            return FORM_STRINGS
        case None:
            return FORM_NULL
        case _:
            return None


def _form_of_content(value: Any) -> str | None:
    match value:
        case str():
            return FORM_STRING
        case list():
            return FORM_PARTS
        case _:
            return None


def _form_of_prompt(value: Any) -> str | None:
    match value:
        case str():
            return FORM_STRING
        case None:
            return FORM_NULL
        case [str(), *_]:
            return FORM_STRINGS
        case [bool(), *_]:
            return None
        case [int() | float(), *_]:
            return FORM_TOKENS
        case [list(), *_]:
            return FORM_TOKEN_LISTS
        case _:
            return None


def by_form(form_of: Any, wanted: str) -> Any:
    """Of the forms that a value may take, the one that it has; `wanted` is what is told where it has none."""
    return Discriminator(form_of, custom_error_type="form", custom_error_message=f"expected {wanted}")


class Strict(BaseModel):
    """Extra fields and lenient conversions are refused; NaN and infinities are no numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 7.0 is an integer (JSON Schema 2020-12, section 6.1.1)."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(value: Any) -> Any:
    """The same for a list of tokens, at once: a call for each of a hundred thousand costs more than the rest."""
    if isinstance(value, list) and any(type(item) is float for item in value):
        return [_whole(item) for item in value]
    return value


# One complaint a list is enough: a body of a million wrong items must not become a million complaints.
_Once = Field(fail_fast=True)
Int = Annotated[int, BeforeValidator(_whole)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]
Stop = Annotated[
    Annotated[StopString, Tag(FORM_STRING)]
    | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), _Once, Tag(FORM_STRINGS)]
    | Annotated[None, Tag(FORM_NULL)],
    by_form(_form_of_stop, "a string, a list of strings or null"),
]


class StreamOptions(Strict):
    """Options of a streamed response."""

    include_usage: bool | None = Field(None, description="One more chunk before the end, with the usage.")
    include_obfuscation: Literal[False] | None = Field(None, description="Not supported: null or false.")


class SamplingFields(Strict):
    """What both endpoints share."""

    model: str = Field(description="As `/v1/models` names it.")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy. Default: the model's own, else 1.")
    top_p: float | None = Field(None, ge=0, le=1, description="Default: the model's own, else 1.")
    top_k: Int | None = Field(None, ge=-1, le=_MAX_COUNT, description="0 or -1: off. Default: the model's own, else 0.")
    min_p: float | None = Field(None, ge=0, le=1, description="Default: the model's own, else 0.")
    repetition_penalty: float | None = Field(
        None, ge=0.01, le=100, description="Over prompt and completion; 1: none. Default: the model's own, else 1."
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Over the completion. Default 0.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Over the completion. Default 0.")
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="Token id, as a string, to what is added to its logit."
    )
    seed: Int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="Equal seeds give equal draws.")
    n: Int | None = Field(None, ge=1, le=MAX_CHOICES, description="Completions of each prompt. Default 1.")
    stop: Stop = Field(None, description="The text ends before the first of these that appears.")
    stream: bool | None = Field(None, description="Server-sent events. Default false.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    user: str | None = Field(None, max_length=512, description="Goes to the server's log; has no other effect.")


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag(FORM_STRING)] | Annotated[list[TextPart], Field(min_length=1), _Once, Tag(FORM_PARTS)],
    by_form(_form_of_content, "a string or a list of text parts"),
]


class Message(Strict):
    """A message of a chat. The fields that must be null let a client send back what it was answered."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content = Field(description="A string or text parts, which are joined.")
    name: str | None = Field(None, max_length=256, description="Handed to the chat template.")
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None


def joined_text(content: str | list[TextPart] | None) -> str:
    """A message's content as one string."""
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


class ChatRequest(SamplingFields):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], _Once] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: Int | None = Field(
        None, ge=1, le=_MAX_COUNT, description="Default: as many as the context holds."
    )
    max_tokens: Int | None = Field(None, ge=1, le=_MAX_COUNT, description="Older name of `max_completion_tokens`.")
    logprobs: bool | None = Field(None, description="Log probabilities of the drawn tokens. Default false.")
    top_logprobs: Int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="So many likely tokens beside each. Only with `logprobs`."
    )
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        Field(max_length=MAX_METADATA_PAIRS),
    ] = Field(None, description="Goes to the server's log; has no other effect.")
    safety_identifier: str | None = Field(None, max_length=128, description="As `user`.")


TokenId = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
_Whole = BeforeValidator(_all_whole)
Prompt = Annotated[
    Annotated[str, Tag(FORM_STRING)]
    | Annotated[list[str], Field(max_length=MAX_CHOICES), _Once, Tag(FORM_STRINGS)]
    | Annotated[list[TokenId], _Once, _Whole, Tag(FORM_TOKENS)]
    | Annotated[
        list[Annotated[list[TokenId], Field(min_length=1), _Once, _Whole]],
        Field(max_length=MAX_CHOICES),
        _Once,
        Tag(FORM_TOKEN_LISTS),
    ]
    | Annotated[None, Tag(FORM_NULL)],
    by_form(_form_of_prompt, "a string, a list of strings, a list of token ids or a list of such lists, not empty"),
]


class CompletionRequest(SamplingFields):
    """Body of `/v1/completions`."""

    prompt: Prompt = Field(description="null: the beginning of a document.")
    max_tokens: Int | None = Field(None, ge=0, le=_MAX_COUNT, description="Default 16.")
    logprobs: Int | None = Field(None, ge=0, le=5, description="So many likely tokens beside each drawn one.")
    echo: bool | None = Field(None, description="The prompt comes before the completion. Default false.")


# Parameters of OpenAI's that are known and have no counterpart here, with the values that ask for nothing.
_NOTHING: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "thinking": ({"type": "disabled"},),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
_CHAT_ONLY = frozenset(_NOTHING) - {"best_of", "suffix"}
UNSUPPORTED_CHAT = {name: _NOTHING[name] for name in sorted(_CHAT_ONLY)}
UNSUPPORTED_COMPLETION = {name: _NOTHING[name] for name in ("best_of", "suffix")}
