"""A model without a chat template: asked in its dialect, its reasoning and tool calls told apart from its answer."""

import io
import json

import pytest
from rich.console import Console

from duckfleet.runtime.chat import run_chat
from duckfleet.runtime.dialect.deepseek_v32 import ASSISTANT, BOS, EOS, THINK, THINK_END, USER, DeepSeekV32
from tests.runtime.conftest import ScriptDecoder, train_deepseek_like
from tests.runtime.server.conftest import MODEL, serving

HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {"name": "f", "strict": True}}
CALL = (
    "\n\n<｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Malmö</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>"
)


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def tokenizer(request):
    return train_deepseek_like(special_marks=request.param)


@pytest.fixture(scope="module")
def make(tokenizer):
    yield from serving(tokenizer)


class Says(ScriptDecoder):
    """Whatever it is asked, it says one text, then ends. `asked`: the prompts."""

    def __init__(self, tokenizer, text):
        self._script = tokenizer.encode(text, add_special_tokens=False)
        self._eos = tokenizer.eos_token_id
        self._assistant = tokenizer.convert_tokens_to_ids(ASSISTANT)
        super().__init__(len(tokenizer), self._next, [self._eos])

    def _next(self, tokens):
        # The script begins after the last mark of whose turn it is, and the mark of thinking or not behind it.
        said = len(tokens) - self.prompt_len
        return self._script[said] if 0 <= said < len(self._script) else self._eos

    @property
    def prompt_len(self):
        return len(self.fed[0])

    def forward(self, tokens, cache, *, all_logits=False):
        if not cache.tokens:
            self.fed.clear()
        return super().forward(tokens, cache, all_logits=all_logits)


@pytest.fixture
def ask(make, tokenizer):
    """Serve a model that says `text`; a function that asks it and returns the whole answer, the gathered stream, and
    the prompt."""

    def serve(text, **options):
        decoder = Says(tokenizer, text)
        served = make(
            decoder, dialect=DeepSeekV32(), ctx=2048, prefill_chunk_len=2048, shown_special=DeepSeekV32().markers
        )

        def ask(**body):
            client = served.openai()
            request = {"model": MODEL, "messages": [HELLO], "temperature": 0, **body}
            extra = {"thinking": request.pop("thinking")} if "thinking" in request else None
            whole = client.chat.completions.create(**request, extra_body=extra)
            prompt = tokenizer.decode(decoder.fed[0])
            streamed = {"content": "", "reasoning_content": "", "tool_calls": []}
            reasons = []
            for chunk in client.chat.completions.create(**request, extra_body=extra, stream=True):
                delta = chunk.choices[0].delta
                streamed["content"] += delta.content or ""
                streamed["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
                streamed["tool_calls"] += delta.tool_calls or []
                reasons.append(chunk.choices[0].finish_reason)
            assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
            return whole.choices[0], streamed, prompt

        ask.served = served
        return ask

    return serve


ENABLED = {"type": "enabled"}


def test_reasoning_is_told_apart_streamed_and_not(ask):
    choice, streamed, prompt = ask("I see a duck: </thin></think>A duck.")(thinking=ENABLED)
    assert prompt == f"{BOS}{USER}hello{ASSISTANT}{THINK}"
    assert choice.message.content == streamed["content"] == "A duck."
    assert choice.message.reasoning_content == streamed["reasoning_content"] == "I see a duck: </thin>"
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None


def test_without_thinking_there_is_none(ask):
    asking = ask("A duck.")
    for body in ({}, {"thinking": {"type": "disabled"}}, {"thinking": None}):
        choice, streamed, prompt = asking(**body)
        assert prompt == f"{BOS}{USER}hello{ASSISTANT}{THINK_END}"
        assert choice.message.content == streamed["content"] == "A duck."
        assert choice.message.reasoning_content is None and not streamed["reasoning_content"]


def test_an_answer_cut_while_it_thinks_has_no_content(ask):
    choice, streamed, _ = ask("I see a duck.</think>Yes")(thinking=ENABLED, max_tokens=4)
    assert choice.finish_reason == "length"
    assert choice.message.content == streamed["content"] == ""
    assert "I see a duck.".startswith(choice.message.reasoning_content) and choice.message.reasoning_content
    assert streamed["reasoning_content"] == choice.message.reasoning_content


def test_tools_are_told_called_and_their_results_come_back(ask):
    asking = ask(f"Rain?</think>Let me see.{CALL}")
    choice, streamed, prompt = asking(thinking=ENABLED, tools=[TOOL])
    assert '<functions>\n{"name": "weather", "parameters": {"type": "object"}}\n</functions>' in prompt
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Malmö"})
    assert [(c.index, c.function.model_dump()) for c in streamed["tool_calls"]] == [(0, call.function.model_dump())]
    assert choice.message.content == streamed["content"] == "Let me see."
    # What was answered goes back as it came, and the model is asked to go on thinking.
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [HELLO, choice.message.model_dump(), result]
    _, _, again = asking(thinking=ENABLED, tools=[TOOL], messages=messages)
    said = f"Rain?</think>Let me see.{CALL}{EOS}"
    assert again == f"{prompt}{said}\n\n<function_results>\n<result>rain</result>\n</function_results>\n\n{THINK}"
    _, _, untold = asking(tools=[TOOL], tool_choice="none")
    assert "functions" not in untold


def test_reasoning_of_earlier_turns_is_taken_back_and_not_told_again(ask):
    asking = ask("Six.")
    earlier = {"role": "assistant", "content": "Five.", "reasoning_content": "Counting."}
    _, _, prompt = asking(messages=[{"role": "developer", "content": "Count."}, HELLO, earlier, HELLO])
    assert prompt == f"{BOS}Count.{USER}hello{ASSISTANT}{THINK_END}Five.{EOS}{USER}hello{ASSISTANT}{THINK_END}"


@pytest.mark.parametrize(
    ("param", "message", "body"),
    [
        ("thinking.type", "expected 'enabled' or 'disabled'", {"thinking": {"type": "maybe"}}),
        ("thinking", "expected an object", {"thinking": True}),
        ("tool_choice", "expected 'none' or 'auto'", {"tools": [TOOL], "tool_choice": "required"}),
        ("tools[0].function.name", "Missing", {"tools": [{"type": "function", "function": {}}]}),
        ("tools[0].function.strict", "expected False", {"tools": [STRICT]}),
        ("messages[0]", "the last message must be", {"messages": [{"role": "assistant", "content": "x"}]}),
        ("messages[0].content", "null only beside tool calls", {"messages": [{"role": "user", "content": None}]}),
        ("messages[0].name", "no names", {"messages": [{**HELLO, "name": "ann"}]}),
        ("messages[0].reasoning_content", "only the role", {"messages": [{**HELLO, "reasoning_content": "x"}]}),
        ("messages[0].tool_call_id", "only the role 'tool'", {"messages": [{**HELLO, "tool_call_id": "x"}]}),
        ("messages[0]", "must follow", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages[0].role", "or 'tool'", {"messages": [{"role": "duck", "content": "x"}]}),
        ("reasoning_effort", "not supported", {"reasoning_effort": "low"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(ask, param, message, body):
    served = ask("x").served
    answer = served.post("/v1/chat/completions", json={"model": MODEL, "messages": [HELLO], **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_the_terminal_chat_shows_what_is_thought(ask, capsys):
    url = ask("I see it.</think>A duck.").served.url
    screen, lines = io.StringIO(), ["hello", "/quit"]

    def typed(_):
        return lines.pop(0)

    assert run_chat(url, think=True, console=Console(file=screen, highlight=False), read_line=typed) == 0
    assert "I see it.\nA duck.\n" in screen.getvalue()
    screen.truncate(0)
    assert run_chat(url, think=True, message="hello", console=Console(file=screen, highlight=False)) == 0
    assert screen.getvalue().lstrip("\0") == "A duck.\n", "one message: the answer alone, for scripts"
    cut = {"think": True, "message": "hello", "max_tokens": 3}
    assert run_chat(url, **cut, console=Console(file=screen, highlight=False)) == 1
    assert "still thinking" in capsys.readouterr().err


def test_the_openapi_document_knows_what_is_taken(ask):
    schemas = ask("x").served.get("/openapi.json").json()["components"]["schemas"]
    assert {"thinking", "tools", "tool_choice", "messages"} <= set(schemas["DialectChatRequest"]["properties"])
