"""What a conversation consists of, and what a dialect is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from duckfleet.inventory.errors import OperatorError

Role = Literal["system", "user", "assistant", "tool"]


class BadConversation(OperatorError):
    """A conversation that cannot be written down; `turn` is the index of the turn that is wrong."""

    def __init__(self, turn: int, message: str) -> None:
        super().__init__(message)
        self.turn = turn


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called. `arguments` is the text of a JSON object."""

    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. A `tool` turn is the result of one call: by `call_id`, or else in the order of the calls."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """Parts of what the model said, or of what was added to it."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def then(self, more: Reply) -> Reply:
        """With what came after it."""
        calls = self.tool_calls + more.tool_calls
        return Reply(self.reasoning + more.reasoning, self.content + more.content, calls)


class ReplyReader(Protocol):
    """Takes one reply's text as it comes. Text that may turn out to be a marker waits until that is known."""

    def push(self, text: str) -> Reply:
        """What is certain now."""
        ...

    def finish(self) -> Reply:
        """The reply is over: the rest."""
        ...


class Dialect(Protocol):
    """How a family of models writes conversations."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Tokens that are part of a reply's text here, even where a tokenizer counts them as special."""
        ...

    def encode(self, turns: Sequence[Turn], *, tools: Sequence[Mapping[str, Any]] = (), thinking: bool = False) -> str:
        """The prompt, its first token included, that the model's reply continues.

        `tools`: functions as OpenAI describes them (name, description, parameters). Raises `BadConversation`.
        """
        ...

    def reader(self, *, thinking: bool = False) -> ReplyReader:
        """For a reply to a prompt that was encoded so."""
        ...


def dialect_of(model_type: str) -> Dialect | None:
    """The dialect of models that are published without a chat template; None for all others."""
    from duckfleet.runtime.dialect.deepseek_v32 import DeepSeekV32

    return DeepSeekV32() if model_type == "deepseek_v32" else None
