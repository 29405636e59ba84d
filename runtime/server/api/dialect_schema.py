"""What `/v1/chat/completions` takes besides where the model has a dialect: thinking, tools, and messages with both.

`thinking` and `reasoning_content` are spelt as in DeepSeek's own API, the rest as in OpenAI's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from duckfleet.runtime.server.api.schema import (
    FORM_NULL,
    FORM_PARTS,
    FORM_STRING,
    MAX_MESSAGES,
    UNSUPPORTED_CHAT,
    ChatRequest,
    Message,
    Strict,
    TextPart,
    by_form,
)

_MAX_TOOLS = 128  # OpenAI's limit
_Once = Field(fail_fast=True)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


def _form_of_content(value: Any) -> str | None:
    match value:
        case str():
            return FORM_STRING
        case list():
            return FORM_PARTS
        case None:
            return FORM_NULL
        case _:
            return None


_Content = Annotated[
    Annotated[str, Tag(FORM_STRING)]
    | Annotated[list[TextPart], Field(min_length=1), _Once, Tag(FORM_PARTS)]
    | Annotated[None, Tag(FORM_NULL)],
    by_form(_form_of_content, "a string, a list of text parts or null"),
]


class CalledFunction(Strict):
    """Which function, and with what."""

    name: Name
    arguments: str = Field(description="A JSON object, as text.")


class CallOfTool(Strict):
    """A call that the model made."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class DialectMessage(Message):
    """A message of a chat, the model's reasoning and its calls of tools included."""

    role: Literal["system", "developer", "user", "assistant", "tool"]  # type: ignore[assignment]
    content: _Content = Field(  # type: ignore[assignment]
        None, description="null only beside `tool_calls`."
    )
    reasoning_content: str | None = Field(None, description="Of an assistant's message: what it thought first.")
    tool_calls: Annotated[list[CallOfTool], Field(max_length=_MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = Field(None, description="Of a tool's message.")


class Function(Strict):
    """A function as the model is told of it."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema.")
    strict: Literal[False] | None = Field(None, description="Not supported: null or false.")


class Tool(Strict):
    """A tool: a function."""

    type: Literal["function"]
    function: Function


class Thinking(Strict):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled"]


class DialectChatRequest(ChatRequest):
    """Body of `/v1/chat/completions` for a model with a dialect."""

    messages: Annotated[list[DialectMessage], _Once] = Field(  # type: ignore[assignment]
        min_length=1, max_length=MAX_MESSAGES
    )
    thinking: Thinking | None = Field(None, description="Default disabled.")
    tools: Annotated[list[Tool], Field(max_length=_MAX_TOOLS), _Once] | None = None
    tool_choice: Literal["none", "auto"] | None = Field(None, description="Default auto where there are tools.")

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking.type == "enabled"


UNSUPPORTED_DIALECT_CHAT = {
    name: values for name, values in UNSUPPORTED_CHAT.items() if name not in DialectChatRequest.model_fields
}
