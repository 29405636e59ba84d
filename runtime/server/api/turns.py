"""From messages of the API to turns of a dialect, and from its replies to messages."""

from __future__ import annotations

import uuid
from typing import Any

from duckfleet.runtime.dialect import BadConversation, Dialect, Reply, ToolCall, Turn
from duckfleet.runtime.server.api.dialect_schema import DialectChatRequest, DialectMessage
from duckfleet.runtime.server.api.errors import invalid
from duckfleet.runtime.server.api.schema import joined_text


def encode_chat(dialect: Dialect, request: DialectChatRequest) -> str:
    """The prompt of a chat. Raises `ApiError` naming the message that is wrong."""
    turns = [_turn(i, message) for i, message in enumerate(request.messages)]
    tools: list[dict[str, Any]] = []
    if request.tools and request.tool_choice != "none":
        tools = [tool.function.model_dump(exclude_none=True, exclude={"strict"}) for tool in request.tools]
    try:
        return dialect.encode(turns, tools=tools, thinking=request.thinks)
    except BadConversation as error:
        param = f"messages[{error.turn}]"
        raise invalid(param, f"Invalid '{param}': {error}.") from error


def _turn(index: int, message: DialectMessage) -> Turn:
    path = f"messages[{index}]"
    if message.name is not None:
        raise invalid(f"{path}.name", f"Unsupported '{path}.name': this model's conversations have no names.")
    for field, role in (("reasoning_content", "assistant"), ("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, field) is not None and message.role != role:
            raise invalid(f"{path}.{field}", f"Invalid '{path}.{field}': only the role '{role}' has one.")
    if message.content is None and not message.tool_calls:
        raise invalid(f"{path}.content", f"Invalid '{path}.content': it may be null only beside tool calls.")
    return Turn(
        # "developer" is the newer name of "system"; what DeepSeek calls so is something else.
        "system" if message.role == "developer" else message.role,
        joined_text(message.content),
        message.reasoning_content or "",
        tuple(ToolCall(c.function.name, c.function.arguments, c.id) for c in message.tool_calls or ()),
        message.tool_call_id or "",
    )


def reply_fields(reply: Reply) -> dict[str, object]:
    """A whole reply as fields of a message."""
    fields: dict[str, object] = {
        "content": None if reply.tool_calls and not reply.content else reply.content,
        "reasoning_content": reply.reasoning or None,
    }
    return {**fields, "tool_calls": _calls(reply)} if reply.tool_calls else fields


def delta_fields(reply: Reply) -> dict[str, object]:
    """What came as fields of a delta; tool calls come at once and whole."""
    fields: dict[str, object] = {}
    if reply.reasoning:
        fields["reasoning_content"] = reply.reasoning
    if reply.content:
        fields["content"] = reply.content
    if reply.tool_calls:
        fields["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_calls(reply))]
    return fields


def _calls(reply: Reply) -> list[dict[str, object]]:
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in reply.tool_calls
    ]
