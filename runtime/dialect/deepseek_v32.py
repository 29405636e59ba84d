"""DeepSeek-V3.2's conversations, which its authors describe by a program rather than by a template.

    <｜begin▁of▁sentence｜>SYSTEM<｜User｜>QUESTION<｜Assistant｜></think>ANSWER<｜end▁of▁sentence｜><｜User｜>...

A turn of the assistant begins with <think>, its reasoning and </think>, or with </think> alone where it does not think.
Reasoning is kept in the prompt only after the last question (while tools are being used), as the model was trained.
Source: `encoding/` of https://huggingface.co/deepseek-ai/DeepSeek-V3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duckfleet.runtime.dialect.conversation import BadConversation, Reply, Turn
from duckfleet.runtime.dialect.dsml import CALLS_BEGIN, MARK, BadCalls, read_calls, write_calls
from duckfleet.runtime.dialect.tools_preamble import tools_preamble

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, THINK_END = "<think>", "</think>"
_CALLS = f"\n\n{CALLS_BEGIN}"


class DeepSeekV32:
    """Implements `Dialect`."""

    @property
    def markers(self) -> tuple[str, ...]:
        return THINK, THINK_END, MARK

    def encode(self, turns: Sequence[Turn], *, tools: Sequence[Mapping[str, Any]] = (), thinking: bool = False) -> str:
        if not turns or turns[-1].role not in ("user", "tool"):
            raise BadConversation(max(0, len(turns) - 1), "the last message must be of a user or a tool")
        if tools and turns[0].role != "system":
            return BOS + "\n\n" + tools_preamble(tools) + _encode_all(turns, (), thinking)
        return BOS + _encode_all(turns, tools, thinking)

    def reader(self, *, thinking: bool = False) -> DeepSeekV32Reader:
        return DeepSeekV32Reader(thinking=thinking)


def _encode_all(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], thinking: bool) -> str:
    """`tools` are told at the end of the first turn, which is the system's."""
    last_user = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
    pieces = []
    i = 0
    while i < len(turns):
        turn = turns[i]
        opening = THINK if thinking and i >= last_user else THINK_END
        match turn.role:
            case "system":
                pieces.append(turn.content)
                if tools and i == 0:
                    pieces.append("\n\n" + tools_preamble(tools))
            case "user":
                pieces.append(f"{USER}{turn.content}{ASSISTANT}{opening}")
            case "assistant":
                pieces.append(_encode_reply(i, turn, with_reasoning=thinking and i > last_user))
                if turn.tool_calls:
                    results = _results(turns, i)
                    i += len(results)
                    again = THINK if thinking and i >= last_user else THINK_END
                    shown = "".join(f"\n<result>{result}</result>" for result in results)
                    pieces.append(f"\n\n<function_results>{shown}\n</function_results>\n\n{again}")
            case "tool":
                raise BadConversation(i, "the result of a tool must follow the message of the assistant that calls it")
        i += 1
    return "".join(pieces)


def _encode_reply(index: int, turn: Turn, *, with_reasoning: bool) -> str:
    if with_reasoning and not (turn.reasoning or turn.tool_calls):
        raise BadConversation(index, "an answer that follows the last question lacks its reasoning_content")
    thought = turn.reasoning + THINK_END if with_reasoning else ""
    try:
        calls = "\n\n" + write_calls(turn.tool_calls) if turn.tool_calls else ""
    except BadCalls as error:
        raise BadConversation(index, f"tool_calls: {error}") from error
    return f"{thought}{turn.content}{calls}{EOS}"


def _results(turns: Sequence[Turn], caller: int) -> list[str]:
    """What the calls of a turn gave, in their order."""
    calls = turns[caller].tool_calls
    results: dict[int, str] = {}
    by_id = {call.call_id: order for order, call in enumerate(calls) if call.call_id}
    for i in range(caller + 1, caller + 1 + len(calls)):
        if i >= len(turns) or turns[i].role != "tool":
            raise BadConversation(min(i, len(turns) - 1), f"{len(calls)} tool calls need as many results after them")
        wanted = turns[i].call_id
        if wanted and by_id and wanted not in by_id:
            raise BadConversation(i, f"there is no tool call {wanted[:80]!r} before this result")
        order = by_id[wanted] if wanted and by_id else i - caller - 1
        if order in results:
            raise BadConversation(i, f"the tool call {wanted[:80]!r} has two results")
        results[order] = turns[i].content
    return [results[order] for order in range(len(calls))]


class DeepSeekV32Reader:
    """Implements `ReplyReader`. Calls that are not well formed are given as the text that they are."""

    def __init__(self, *, thinking: bool) -> None:
        self._marker = THINK_END if thinking else _CALLS
        self._held = ""
        self._calls: str | None = None  # the markup so far

    def push(self, text: str) -> Reply:
        if self._calls is not None:
            self._calls += text
            return Reply()
        text = self._held + text
        before, found, after = text.partition(self._marker)
        if found and self._marker == THINK_END:
            self._marker, self._held = _CALLS, ""
            rest = self.push(after)
            return Reply(before, rest.content)
        if found:
            self._held, self._calls = "", found + after
            return Reply(content=before)
        self._held = _beginning_of(self._marker, text)
        return self._part(text[: len(text) - len(self._held)])

    def finish(self) -> Reply:
        if self._calls is not None:
            try:
                return Reply(tool_calls=read_calls(self._calls.removeprefix("\n\n")))
            except BadCalls:
                return Reply(content=self._calls)
        held, self._held = self._held, ""
        return self._part(held)

    def _part(self, text: str) -> Reply:
        return Reply(reasoning=text) if self._marker == THINK_END else Reply(content=text)


def _beginning_of(marker: str, text: str) -> str:
    """The longest end of `text` that `marker` begins with."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return text[-length:]
    return ""
