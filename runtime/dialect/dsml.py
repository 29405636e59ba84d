"""Tool calls in DeepSeek-V3.2's markup: written, and read back strictly.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="weather">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

A string stands there as it is, without escapes; every other value is JSON. Source: `encoding/` of
https://huggingface.co/deepseek-ai/DeepSeek-V3.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from duckfleet.runtime.dialect.conversation import ToolCall

MARK = "｜DSML｜"
CALLS_BEGIN = f"<{MARK}function_calls>"
_CALLS_END = f"</{MARK}function_calls>"
_PARAMETER_END = f"</{MARK}parameter>"
_INVOKE_END = f"</{MARK}invoke>"
_INVOKE = re.compile(rf'<{MARK}invoke name="([^"]*)">\n')
_PARAMETER = re.compile(rf'<{MARK}parameter name="([^"]*)" string="(true|false)">')


class BadCalls(ValueError):
    """Text that is not the markup of tool calls."""


def write_calls(calls: Sequence[ToolCall]) -> str:
    """Raises `BadCalls` for arguments that are no JSON object, or a name or value that the markup cannot hold."""
    return "\n".join((CALLS_BEGIN, *map(_write_call, calls), _CALLS_END))


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """The calls of a text that is the markup from its first character to its last. Raises `BadCalls`."""
    reader = _Reader(text)
    reader.expect(CALLS_BEGIN + "\n")
    calls = []
    while not reader.at_end_after(_CALLS_END):
        name = reader.match(_INVOKE).group(1)
        parameters: dict[str, Any] = {}
        while not reader.skip(_INVOKE_END):
            parameter = reader.match(_PARAMETER)
            value = reader.until(_PARAMETER_END)
            if parameter.group(1) in parameters:
                raise BadCalls(f"the parameter {parameter.group(1)!r} is there twice")
            parameters[parameter.group(1)] = value if parameter.group(2) == "true" else _from_json(value)
            reader.expect("\n")
        reader.expect("\n")
        calls.append(ToolCall(name, to_json(parameters)))
    return tuple(calls)


def _write_call(call: ToolCall) -> str:
    arguments = _from_json(call.arguments)
    if not isinstance(arguments, dict):
        raise BadCalls("the arguments of a call must be a JSON object")
    lines = [f'<{MARK}invoke name="{_attribute(call.name)}">']
    for name, value in arguments.items():
        is_string = isinstance(value, str)
        text = value if is_string else to_json(value)
        if _PARAMETER_END in text:
            raise BadCalls(f"the argument {name!r} contains {_PARAMETER_END}, which nothing can escape")
        kind = "true" if is_string else "false"
        lines.append(f'<{MARK}parameter name="{_attribute(name)}" string="{kind}">{text}{_PARAMETER_END}')
    # A call without arguments has an empty line, as in the published encoding.
    return "\n".join((*lines, *([""] if not arguments else []), _INVOKE_END))


def _attribute(name: str) -> str:
    if '"' in name:
        raise BadCalls(f"the name {name!r} contains a quotation mark, which nothing can escape")
    return name


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadCalls(f"{text[:60]!r} is not JSON: {error}") from error


def to_json(value: Any) -> str:
    """Characters stay as they are."""
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """A place in a text that moves forward."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def skip(self, wanted: str) -> bool:
        # An invocation without parameters has an empty line before its end.
        for literal in (wanted, "\n" + wanted):
            if self._text.startswith(literal, self._at):
                self._at += len(literal)
                return True
        return False

    def expect(self, literal: str) -> None:
        if not self._text.startswith(literal, self._at):
            raise BadCalls(f"expected {literal!r} at {self._text[self._at : self._at + 40]!r}")
        self._at += len(literal)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise BadCalls(f"unexpected {self._text[self._at : self._at + 40]!r}")
        self._at = found.end()
        return found

    def until(self, literal: str) -> str:
        end = self._text.find(literal, self._at)
        if end < 0:
            raise BadCalls(f"{literal!r} is missing")
        found, self._at = self._text[self._at : end], end + len(literal)
        return found

    def at_end_after(self, literal: str) -> bool:
        if not self._text.startswith(literal, self._at):
            return False
        if self._text[self._at + len(literal) :]:
            raise BadCalls("there is text behind the calls")
        return True
