"""From a parsed body to a request, or to a complaint that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from duckfleet.runtime.server.api.dialect_schema import UNSUPPORTED_DIALECT_CHAT, DialectChatRequest
from duckfleet.runtime.server.api.errors import ApiError, invalid
from duckfleet.runtime.server.api.schema import (
    FORMS,
    UNSUPPORTED_CHAT,
    UNSUPPORTED_COMPLETION,
    ChatRequest,
    CompletionRequest,
    Strict,
)

Request = TypeVar("Request", bound=Strict)

_SHOWN_LEN = 80  # characters of a client's value or field name that are repeated to it
_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "none_required": "null",
}


def parse_chat(body: object) -> ChatRequest:
    """Body of `/v1/chat/completions`. Raises `ApiError`, status 400, for the first thing that is wrong."""
    return _parse(ChatRequest, body, UNSUPPORTED_CHAT)


def parse_dialect_chat(body: object) -> DialectChatRequest:
    """The same for a model with a dialect."""
    return _parse(DialectChatRequest, body, UNSUPPORTED_DIALECT_CHAT)


def parse_completion(body: object) -> CompletionRequest:
    """Body of `/v1/completions`. Raises `ApiError`, status 400, for the first thing that is wrong."""
    return _parse(CompletionRequest, body, UNSUPPORTED_COMPLETION)


def _parse(kind: type[Request], body: object, unsupported: Mapping[str, tuple[object, ...]]) -> Request:
    """`unsupported`: parameters that are refused by name, with the values that ask for nothing."""
    if not isinstance(body, dict):
        raise invalid(None, f"The body must be a JSON object, but it is {_kind_of(body)}.", "invalid_type")
    kept = {}
    for name, value in body.items():
        if name not in unsupported:
            kept[name] = value
        elif value is not None and not any(_same(value, nothing) for nothing in unsupported[name]):
            raise invalid(
                name, f"Unsupported parameter: '{name}' is not supported by this server.", "unsupported_parameter"
            )
    try:
        return kind.model_validate(kept)
    except ValidationError as error:
        raise _complaint(min(error.errors(include_url=False), key=_rank), kept) from None


def _rank(error: ErrorDetails) -> int:
    """What is told first: an unknown role, then an unknown field; what else is wrong is often their consequence."""
    if error["type"] == "literal_error" and error["loc"][-1] == "role":
        return 0
    return 1 if error["type"] == "extra_forbidden" else 2


def _complaint(error: ErrorDetails, body: dict[str, Any]) -> ApiError:
    location = [part for part in error["loc"] if part not in FORMS]
    of_key = location[-1:] == ["[key]"]
    param = _path(location[:-1] if of_key else location)
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return invalid(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")
        case "extra_forbidden":
            return invalid(param, f"Unknown parameter: '{param}'.", "unknown_parameter")
        case "literal_error":
            return invalid(param, f"Invalid value for '{param}': expected {context['expected']}.")
        case "form":
            got = _kind_of(_value_at(body, location))
            return invalid(param, f"Invalid type for '{param}': {error['msg']}, but got {got}.", "invalid_type")
        case kind if kind in _EXPECTED:
            got = _kind_of(_value_at(body, location))
            return invalid(
                param, f"Invalid type for '{param}': expected {_EXPECTED[kind]}, but got {got}.", "invalid_type"
            )
        case _:
            message = error["msg"].removeprefix("Input ").removeprefix("String ").removeprefix("List ")
            return invalid(param, f"Invalid '{param}': {message[:1].lower()}{message[1:]}.")


def _path(location: list[int | str]) -> str:
    """("messages", 0, "content") -> messages[0].content"""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            shown = part if len(part) <= _SHOWN_LEN else part[:_SHOWN_LEN] + "…"
            path += f".{shown}" if path else shown
    return path


def _value_at(body: Any, location: list[int | str]) -> Any:
    for part in location:
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case []:
            return "an empty list"
        case list():
            return "a list"
        case _:
            return "an object"


def _same(value: object, other: object) -> bool:
    """Equal and of one type: 1 is not true."""
    return type(value) is type(other) and value == other
