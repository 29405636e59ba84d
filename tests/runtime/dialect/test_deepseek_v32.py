"""DeepSeek-V3.2's conversations: golden texts in the published encoding, and replies read back however they are cut."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.runtime.dialect import BadConversation, Reply, ToolCall, Turn, dialect_of
from duckfleet.runtime.dialect.deepseek_v32 import BOS, EOS, DeepSeekV32
from duckfleet.runtime.dialect.dsml import BadCalls, read_calls, write_calls
from duckfleet.runtime.dialect.tools_preamble import tools_preamble

DIALECT = DeepSeekV32()
SYSTEM, HELLO, SUM = Turn("system", "Be brief."), Turn("user", "hello"), Turn("user", "1+1=?")
GREETING = Turn("assistant", "Hello! I am DeepSeek.", "thinking...")
WEATHER = {"name": "weather", "description": "of Köln", "parameters": {"type": "object"}}
CALLS = (ToolCall("weather", '{"city": "Oslo", "days": 3}', "a"), ToolCall("now", "{}", "b"))
MARKUP = (
    "<｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    '<｜DSML｜invoke name="now">\n'
    "\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>"
)


@pytest.mark.parametrize(
    ("turns", "thinking", "expected"),
    [
        ([HELLO], False, "<｜User｜>hello<｜Assistant｜></think>"),
        ([HELLO], True, "<｜User｜>hello<｜Assistant｜><think>"),
        ([SYSTEM, HELLO], False, "Be brief.<｜User｜>hello<｜Assistant｜></think>"),
        (  # the example of the published README: what was thought before the last question is dropped
            [HELLO, GREETING, SUM],
            True,
            "<｜User｜>hello<｜Assistant｜></think>Hello! I am DeepSeek.<｜end▁of▁sentence｜>"
            "<｜User｜>1+1=?<｜Assistant｜><think>",
        ),
        (  # while tools are used, it is kept
            [
                HELLO,
                Turn("assistant", "Let me see.", "I need the weather.", CALLS),
                Turn("tool", "17:00", call_id="b"),
                Turn("tool", "rain", call_id="a"),
            ],
            True,
            f"<｜User｜>hello<｜Assistant｜><think>I need the weather.</think>Let me see.\n\n{MARKUP}"
            "<｜end▁of▁sentence｜>\n\n<function_results>\n<result>rain</result>\n<result>17:00</result>\n"
            "</function_results>\n\n<think>",
        ),
        (
            [HELLO, Turn("assistant", "", "", CALLS[1:]), Turn("tool", "17:00"), Turn("assistant", "Five."), SUM],
            False,
            '<｜User｜>hello<｜Assistant｜></think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="now">\n\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>\n\n<function_results>\n"
            "<result>17:00</result>\n</function_results>\n\n</think>Five.<｜end▁of▁sentence｜>"
            "<｜User｜>1+1=?<｜Assistant｜></think>",
        ),
    ],
)
def test_golden_prompts(turns, thinking, expected):
    assert DIALECT.encode(turns, thinking=thinking) == BOS + expected


def test_tools_are_told_at_the_end_of_the_system_turn():
    told = tools_preamble([WEATHER])
    assert told.endswith(
        '<functions>\n{"name": "weather", "description": "of Köln", "parameters": {"type": "object"}}\n</functions>\n'
    )
    asked = "<｜User｜>hello<｜Assistant｜></think>"
    assert DIALECT.encode([SYSTEM, HELLO], tools=[WEATHER]) == f"{BOS}Be brief.\n\n{told}{asked}"
    assert DIALECT.encode([HELLO], tools=[WEATHER]) == f"{BOS}\n\n{told}{asked}"


def test_the_preamble_is_the_published_one():
    digest = hashlib.sha256(tools_preamble([]).encode()).hexdigest()
    assert digest == "1b50633aa5277b56f6a1219de4af7c4426c33cbc817d889019077278d65a1480"


@pytest.mark.parametrize(
    ("turns", "thinking", "turn", "message"),
    [
        ([], False, 0, "last message"),
        ([HELLO, GREETING], False, 1, "last message"),
        ([HELLO, Turn("tool", "x")], False, 1, "must follow"),
        ([HELLO, Turn("assistant", "", "", CALLS), Turn("tool", "x"), SUM], False, 3, "2 tool calls need"),
        ([HELLO, Turn("assistant", "", "", CALLS), Turn("tool", "x")], False, 2, "2 tool calls need"),
        ([HELLO, Turn("assistant", "", "", CALLS), *[Turn("tool", "x", call_id="a")] * 2], False, 3, "two results"),
        (
            [HELLO, Turn("assistant", "", "", CALLS), *[Turn("tool", "x", call_id="z")] * 2],
            False,
            2,
            "no tool call 'z'",
        ),
        ([HELLO, Turn("assistant", "", "", (ToolCall("f", "[]"),)), Turn("tool", "x")], False, 1, "JSON object"),
        ([HELLO, Turn("assistant", "", "", (ToolCall("f", "{"),)), Turn("tool", "x")], False, 1, "not JSON"),
        ([HELLO, Turn("assistant", "", "", (ToolCall('"', "{}"),)), Turn("tool", "x")], False, 1, "quotation mark"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_place(turns, thinking, turn, message):
    with pytest.raises(BadConversation, match=message) as refused:
        DIALECT.encode(turns, thinking=thinking)
    assert refused.value.turn == turn


def test_only_v32_has_this_dialect():
    assert isinstance(dialect_of("deepseek_v32"), DeepSeekV32)
    assert dialect_of("deepseek_v3") is None and dialect_of("llama") is None


PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(
    lambda t: "｜" not in t and "think" not in t
)
VALUES = st.recursive(
    PLAIN | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[\w.-]{1,12}", fullmatch=True)
TOOL_CALLS = st.builds(
    lambda name, arguments: ToolCall(name, json.dumps(arguments, ensure_ascii=False)),
    NAMES,
    st.dictionaries(NAMES, VALUES, max_size=3),
)
REPLIES = st.builds(Reply, PLAIN, PLAIN, st.lists(TOOL_CALLS, max_size=3).map(tuple))


@given(REPLIES, st.booleans(), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_reply_comes_back_as_it_was_encoded_however_it_is_cut(reply, thinking, cuts):
    """What is asked of the model next time begins with what it was asked and said this time."""
    if not thinking:
        reply = Reply("", reply.content, reply.tool_calls)
    said = Turn("assistant", reply.content, reply.reasoning or ("because" if thinking else ""), reply.tool_calls)
    results = [Turn("tool", "x")] * len(reply.tool_calls)
    prompt = DIALECT.encode([HELLO], thinking=thinking)
    if results:
        whole = DIALECT.encode([HELLO, said, *results], thinking=thinking)
        assert whole.startswith(prompt)
        text = whole[len(prompt) : whole.index(EOS)]
    else:
        text = f"{said.reasoning}</think>{said.content}" if thinking else said.content
    reader, parts, at = DIALECT.reader(thinking=thinking), [], 0
    while at < len(text):
        step = cuts[at % len(cuts)]
        parts.append(reader.push(text[at : at + step]))
        at += step
    parts.append(reader.finish())
    assert "".join(part.reasoning for part in parts) == said.reasoning
    assert "".join(part.content for part in parts) == said.content
    assert tuple(call for part in parts for call in part.tool_calls) == said.tool_calls


def test_text_is_held_back_only_while_it_may_be_a_marker():
    reader = DIALECT.reader(thinking=True)
    assert reader.push("so </th") == Reply("so ")
    assert reader.push("en</thin") == Reply("</then")
    assert reader.push("k>Yes\n") == Reply("", "Yes")
    assert reader.push("\n<｜DSML｜") == Reply()
    assert reader.push("nothing") == Reply("", "\n\n<｜DSML｜nothing")
    assert reader.finish() == Reply()


@pytest.mark.parametrize(
    "broken",
    [
        MARKUP[:-1],
        MARKUP + " ",
        MARKUP.replace('"true"', '"maybe"'),
        MARKUP.replace('name="days"', 'name="city"'),
        MARKUP.replace(">3<", ">three<"),
        MARKUP.replace("</｜DSML｜invoke>", "", 1),
        MARKUP.replace('name="now"', "now"),
        MARKUP.replace("parameter>\n", "parameter>", 1),
    ],
)
def test_markup_that_is_not_well_formed_is_text(broken):
    with pytest.raises(BadCalls):
        read_calls(broken)
    reader = DIALECT.reader()
    parts = [reader.push("see\n\n" + broken), reader.finish()]
    assert "".join(part.content for part in parts) == "see\n\n" + broken
    assert not any(part.tool_calls for part in parts)


def test_calls_are_written_as_published():
    assert write_calls(CALLS) == MARKUP
    assert [(c.name, json.loads(c.arguments)) for c in read_calls(MARKUP)] == [
        ("weather", {"city": "Oslo", "days": 3}),
        ("now", {}),
    ]


def test_a_value_that_would_end_its_parameter_is_refused():
    with pytest.raises(BadCalls, match="escape"):
        write_calls([ToolCall("f", json.dumps({"x": "</｜DSML｜parameter>"}))])
