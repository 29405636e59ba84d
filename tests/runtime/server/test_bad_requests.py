"""Every way of asking wrongly: status, type, param and message of the answer, and the next good request works."""
# ruff: noqa: E501  (one bad request a line)

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from duckfleet.runtime.server import ServerSettings

MODEL = "tiny-llama"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hello"}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Bad:
    """A request, and what must be answered."""

    name: str
    message: str  # a part of it
    param: str | None = None
    status: int = 400
    code: str | None = None
    path: str = CHAT
    method: str = "POST"
    body: dict[str, Any] | None = None  # over a good body
    without: tuple[str, ...] = ()  # fields that the good body loses
    raw: bytes | None = None  # instead of a body
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))

    def content(self) -> bytes:
        if self.raw is not None:
            return self.raw
        good: dict[str, Any] = {"model": MODEL, "max_tokens": 1}
        good |= {"messages": [USER]} if self.path == CHAT else {"prompt": "hello"}
        good |= self.body or {}
        return json.dumps({name: value for name, value in good.items() if name not in self.without}).encode()


def chat(name: str, param: str, message: str, **body: Any) -> Bad:
    return Bad(name, message, param, body=body)


def text(name: str, param: str, message: str, **body: Any) -> Bad:
    return Bad(name, message, param, path=TEXT, body=body)


def messages(name: str, param: str, message: str, *value: Any) -> Bad:
    return Bad(name, message, param, body={"messages": list(value)})


# fmt: off
BAD = [
    # The HTTP around it.
    Bad("no such path", "nothing at '/v1/nothing'", status=404, code="not_found", path="/v1/nothing"),
    Bad("trailing slash", "nothing at", status=404, path=CHAT + "/"),
    Bad("get", "does not take GET", status=405, method="GET"),
    Bad("delete", "does not take DELETE", status=405, method="DELETE"),
    Bad("post to models", "does not take POST", status=405, path="/v1/models"),
    Bad("query", "Query parameters are not supported", path=CHAT + "?stream=true"),
    Bad("no content type", "'Content-Type' is missing", headers={}),
    Bad("form", "Unsupported content type: 'application/x-www-form-urlencoded'", headers={"content-type": "application/x-www-form-urlencoded"}),
    Bad("text/json", "Unsupported content type", headers={"content-type": "text/json"}),
    Bad("charset", "Unsupported charset: 'utf-16'", headers={"content-type": "application/json; charset=utf-16"}),
    Bad("gzip", "Unsupported content encoding: 'gzip'", headers={**JSON, "content-encoding": "gzip"}),
    # The JSON.
    Bad("empty body", "The body is not JSON", raw=b""),
    Bad("broken json", "line 1, column 2", raw=b"{model: 1}"),
    Bad("cut json", "The body is not JSON", raw=b'{"model": "tiny-lla'),
    Bad("two documents", "Extra data", raw=b"{} {}"),
    Bad("not utf-8", "The body is not UTF-8: byte 11", raw=b'{"model": "\xff"}'),
    Bad("utf-16", "The body is not", raw='{"model": "x"}'.encode("utf-16")),
    Bad("byte order mark", "The body is not JSON", raw=b'\xef\xbb\xbf{"model": "x"}'),
    Bad("deep nesting", "nested too deeply", raw=b"[" * 100_000 + b"]" * 100_000),
    Bad("nan", "NaN is not a JSON number", raw=b'{"model": "m", "temperature": NaN}'),
    Bad("infinity", "-Infinity is not a JSON number", raw=b'{"temperature": -Infinity}'),
    Bad("twice", "appears twice", "model", raw=b'{"model": "a", "model": "b"}'),
    Bad("many names", "An object has 100000 names", raw=json.dumps(dict.fromkeys(map(str, range(100_000)))).encode()),
    Bad("many names, one twice", "An object has 150001 names", raw=b"{" + b"".join(b'"%d":1,' % i for i in range(150_000)) + b'"0":1}'),
    Bad("many digits", "not usable JSON", raw=b'{"seed": ' + b"9" * 5000 + b"}"),
    Bad("a list", "must be a JSON object, but it is an empty list", raw=b"[]"),
    Bad("null", "must be a JSON object, but it is null", raw=b"null"),
    Bad("a string", "must be a JSON object, but it is a string", raw=b'"model"'),
    # The model.
    Bad("no model", "Missing required parameter: 'model'", "model", without=("model",)),
    Bad("null model", "Invalid type for 'model': expected a string, but got null", "model", body={"model": None}),
    Bad("other model", "The model 'gpt-9' does not exist here; this server has 'tiny-llama'", "model", 404, "model_not_found", body={"model": "gpt-9"}),
    # Fields that are not there.
    chat("unknown field", "temprature", "Unknown parameter: 'temprature'", temprature=1),
    Bad("unknown of completions", "Unknown parameter: 'messages'", "messages", path=TEXT, body={"messages": [USER]}),
    chat("chat has no prompt", "prompt", "Unknown parameter: 'prompt'", prompt="x"),
    chat("unknown before wrong", "nn", "Unknown parameter: 'nn'", nn=1, temperature="x"),
    chat("empty name", "", "Unknown parameter: ''", **{"": 1}),
    chat("surrogate name", "\\udc80", "a lone surrogate is no character", **{"\udc80": 1}),
    # Messages.
    Bad("no messages", "Missing required parameter: 'messages'", "messages", without=("messages",)),
    chat("messages is a string", "messages", "expected a list, but got a string", messages="hello"),
    messages("no message", "messages", "Invalid 'messages': should have at least 1 item"),
    messages("message is a string", "messages[0]", "expected an object, but got a string", "hello"),
    messages("no role", "messages[0].role", "Missing required parameter: 'messages[0].role'", {"content": "x"}),
    messages("no content", "messages[1].content", "Missing required parameter", USER, {"role": "assistant"}),
    messages("wrong role", "messages[0].role", "expected 'system', 'developer', 'user' or 'assistant'", {"role": "duck", "content": "x"}),
    messages("tool role", "messages[0].role", "Invalid value", {"role": "tool", "content": "x", "tool_call_id": "1"}),
    messages("null content", "messages[0].content", "a list of text parts, but got null", {"role": "user", "content": None}),
    messages("content is a number", "messages[0].content", "a list of text parts, but got an integer", {"role": "user", "content": 5}),
    messages("no parts", "messages[0].content", "at least 1 item", {"role": "user", "content": []}),
    messages("part is a string", "messages[0].content[0]", "expected an object", {"role": "user", "content": ["x"]}),
    messages("image", "messages[0].content[0].type", "expected 'text'", {"role": "user", "content": [{"type": "image_url", "text": ""}]}),
    messages("part without text", "messages[0].content[0].text", "Missing", {"role": "user", "content": [{"type": "text"}]}),
    messages("unknown of part", "messages[0].content[0].x", "Unknown", {"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}),
    messages("unknown of message", "messages[0].weight", "Unknown parameter", {**USER, "weight": 1}),
    messages("tool calls", "messages[0].tool_calls", "Invalid", {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}),
    messages("surrogate", "messages[0].content", "a lone surrogate is no character", {"role": "user", "content": "\udc80"}),
    messages("name is a number", "messages[0].name", "expected a string", {**USER, "name": 7}),
    Bad("context", "context holds 256 tokens, but you asked for", "messages", code="context_length_exceeded", body={"messages": [{"role": "user", "content": "a b c " * 200}]}),
    Bad("context and completion", "1000 for the completion", "messages", code="context_length_exceeded", body={"max_tokens": 1000}),
    Bad("far too long", "cannot fit into this model's context", "messages", code="context_length_exceeded", body={"messages": [{"role": "user", "content": "a" * 500_000}]}),
    # Numbers: types and ranges.
    chat("temperature is a string", "temperature", "expected a number, but got a string", temperature="hot"),
    chat("temperature is true", "temperature", "expected a number, but got a boolean", temperature=True),
    chat("temperature above", "temperature", "should be less than or equal to 2", temperature=2.01),
    chat("temperature below", "temperature", "should be greater than or equal to 0", temperature=-1),
    Bad("temperature 1e999", "finite", "temperature", raw=b'{"model":"tiny-llama","messages":[{"role":"user","content":"x"}],"temperature":1e999}'),
    chat("top_p above", "top_p", "less than or equal to 1", top_p=1.5),
    chat("top_p is a list", "top_p", "expected a number, but got a list", top_p=[1]),
    chat("top_k below", "top_k", "greater than or equal to -1", top_k=-2),
    chat("top_k is a fraction", "top_k", "expected an integer, but got a number", top_k=1.5),
    chat("min_p above", "min_p", "less than or equal to 1", min_p=2),
    chat("repetition_penalty is zero", "repetition_penalty", "greater than or equal to 0.01", repetition_penalty=0),
    chat("frequency_penalty above", "frequency_penalty", "less than or equal to 2", frequency_penalty=2.5),
    chat("presence_penalty below", "presence_penalty", "greater than or equal to -2", presence_penalty=-3),
    chat("n is zero", "n", "greater than or equal to 1", n=0),
    chat("n above", "n", "less than or equal to 128", n=129),
    chat("n is a string", "n", "expected an integer, but got a string", n="2"),
    chat("n is true", "n", "expected an integer, but got a boolean", n=True),
    chat("seed is a string", "seed", "expected an integer", seed="7"),
    chat("seed above", "seed", "Invalid 'seed'", seed=2**63),
    chat("seed of 100 digits", "seed", "Invalid 'seed'", seed=10**100),
    chat("max_tokens is zero", "max_tokens", "greater than or equal to 1", max_tokens=0),
    chat("max_tokens below", "max_tokens", "greater than or equal to 1", max_tokens=-5),
    chat("max_completion_tokens is a fraction", "max_completion_tokens", "expected an integer", max_completion_tokens=1.5),
    chat("two limits", "max_tokens", "give one of them", max_tokens=1, max_completion_tokens=1),
    # Log probabilities.
    chat("logprobs is a number", "logprobs", "expected true or false, but got an integer", logprobs=3),
    chat("top_logprobs alone", "top_logprobs", "needs 'logprobs' to be true", top_logprobs=3),
    chat("top_logprobs above", "top_logprobs", "less than or equal to 20", logprobs=True, top_logprobs=21),
    text("logprobs of completions above", "logprobs", "less than or equal to 5", logprobs=6),
    text("logprobs of completions is true", "logprobs", "expected an integer, but got a boolean", logprobs=True),
    # Stop strings.
    chat("stop is a number", "stop", "expected a string, a list of strings or null, but got an integer", stop=7),
    chat("stop is empty", "stop", "at least 1 character", stop=""),
    chat("stop holds an empty one", "stop[1]", "at least 1 character", stop=["a", ""]),
    chat("stop holds a number", "stop[0]", "expected a string, but got an integer", stop=[7]),
    chat("too many stops", "stop", "at most 16 items", stop=[str(i) for i in range(17)]),
    chat("a long stop", "stop", "at most 1024 characters", stop="x" * 1025),
    # Bias.
    chat("bias is a list", "logit_bias", "expected an object, but got an empty list", logit_bias=[]),
    chat("bias of a word", "logit_bias", "keys must be token ids", logit_bias={"duck": 1}),
    chat("bias of a negative id", "logit_bias", "keys must be token ids", logit_bias={"-1": 1}),
    chat("bias of 01", "logit_bias", "keys must be token ids", logit_bias={"01": 1}),
    chat("bias of another script", "logit_bias", "keys must be token ids", logit_bias={"１": 1}),
    chat("bias outside the vocabulary", "logit_bias", "token id 99999 is not in the vocabulary of 384 tokens", logit_bias={"99999": 1}),
    chat("bias above", "logit_bias.5", "less than or equal to 100", logit_bias={"5": 101}),
    chat("bias is a string", "logit_bias.5", "expected a number", logit_bias={"5": "1"}),
    chat("too many biases", "logit_bias", "at most 1024", logit_bias={str(i): 0 for i in range(1025)}),
    # Streaming.
    chat("stream is a string", "stream", "expected true or false", stream="yes"),
    chat("stream_options alone", "stream_options", "needs 'stream' to be true", stream_options={"include_usage": True}),
    chat("stream_options is a list", "stream_options", "expected an object", stream=True, stream_options=[]),
    chat("unknown of stream_options", "stream_options.usage", "Unknown parameter", stream=True, stream_options={"usage": 1}),
    chat("include_usage is a number", "stream_options.include_usage", "expected true or false", stream=True, stream_options={"include_usage": 1}),
    chat("obfuscation", "stream_options.include_obfuscation", "expected False", stream=True, stream_options={"include_obfuscation": True}),
    # What OpenAI has and this server has not.
    *[
        chat(name, name, f"'{name}' is not supported by this server", **{name: value})
        for name, value in {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "functions": [],
            "function_call": "auto",
            "response_format": {"type": "json_object"},
            "modalities": ["text", "audio"],
            "audio": {"voice": "duck"},
            "prediction": {"type": "content", "content": ""},
            "reasoning_effort": "low",
            "thinking": {"type": "enabled"},
            "service_tier": "flex",
            "store": True,
            "verbosity": "low",
            "web_search_options": {},
            "prompt_cache_key": "k",
        }.items()
    ],
    text("best_of", "best_of", "'best_of' is not supported", best_of=3),
    text("best_of true", "best_of", "'best_of' is not supported", best_of=True),
    text("suffix", "suffix", "'suffix' is not supported", suffix="end"),
    # Who asks.
    chat("user is a number", "user", "expected a string", user=7),
    chat("a long user", "user", "at most 512 characters", user="x" * 513),
    chat("metadata is a list", "metadata", "expected an object", metadata=[]),
    chat("metadata holds a number", "metadata.run", "expected a string", metadata={"run": 7}),
    chat("too much metadata", "metadata", "at most 16 items", metadata={str(i): "" for i in range(17)}),
    # Prompts.
    Bad("no prompt", "Missing required parameter: 'prompt'", "prompt", path=TEXT, without=("prompt",)),
    text("prompt is a number", "prompt", "expected a string, a list of strings", prompt=7),
    text("prompt is true", "prompt", "but got a boolean", prompt=True),
    text("prompt is an object", "prompt", "but got an object", prompt={"text": "x"}),
    text("prompt is empty", "prompt", "not empty, but got an empty list", prompt=[]),
    text("prompt of nulls", "prompt", "but got a list", prompt=[None]),
    text("mixed prompt", "prompt[1]", "expected a string, but got an integer", prompt=["a", 1]),
    text("mixed tokens", "prompt[1]", "expected an integer, but got a string", prompt=[1, "a"]),
    text("an empty token list", "prompt[1]", "at least 1 item", prompt=[[1], []]),
    text("a fraction of a token", "prompt[1]", "expected an integer, but got a number", prompt=[1.0, 1.5]),
    text("a negative token", "prompt[0]", "greater than or equal to 0", prompt=[-1]),
    text("half a million negative tokens", "prompt[0]", "greater than or equal to 0", prompt=[-1] * 500_000),
    text("many empty lists", "prompt[0]", "at least 1 item", prompt=[[]] * 200_000),
    messages("a hundred thousand bad messages", "messages[0]", "expected an object", *[1] * 100_000),
    messages("a hundred thousand bad parts", "messages[0].content[0]", "expected an object", {"role": "user", "content": [1] * 100_000}),
    chat("a hundred thousand bad stops", "stop[0]", "expected a string", stop=[1] * 100_000),
    text("a token outside the vocabulary", "prompt", "token id 4000 is not in the vocabulary of 384", prompt=[1, 4000]),
    text("too many prompts", "prompt", "at most 128 items", prompt=["a"] * 129),
    text("too many choices", "n", "at most 128", prompt=["a"] * 65, n=2),
    text("prompt and surrogate", "prompt", "a lone surrogate is no character", prompt="\udfff"),
    text("echo is a string", "echo", "expected true or false", echo="yes"),
    text("context of a prompt", "prompt", "context holds 256 tokens", prompt=[1] * 256),
    text("max_tokens of completions below", "max_tokens", "greater than or equal to 0", max_tokens=-1),
]
# fmt: on


@pytest.mark.parametrize("bad", BAD, ids=[bad.name for bad in BAD])
def test_is_refused_with_words(served: Any, bad: Bad) -> None:
    answer = served.request(
        bad.method, bad.path, content=bad.content() if bad.method == "POST" else None, headers=bad.headers
    )
    assert answer.status_code == bad.status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req-")
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == bad.param
    assert bad.message in error["message"]
    assert error["code"]
    if bad.code is not None:
        assert error["code"] == bad.code
    if bad.param:
        assert bad.param.split("[")[0].split(".")[0] in error["message"], "the message names the field"


def test_there_are_many_and_the_next_good_request_works(served: Any) -> None:
    assert sum(bad.status == 400 for bad in BAD) >= 60
    assert len({bad.name for bad in BAD}) == len(BAD)
    assert served.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_large_body_is_not_read_to_its_end(serve: Any, script_decoder: Any, announced: bool) -> None:
    served = serve(script_decoder("hi", 1), settings=ServerSettings(max_body_bytes=10_000))

    def pieces() -> Any:
        for _ in range(20):
            yield b" " * 1000

    options = {"content": b" " * 20_000} if announced else {"content": pieces()}
    answer = served.post(CHAT, headers=JSON, **options)
    assert answer.status_code == 413
    assert "larger than 10000 bytes" in answer.json()["error"]["message"]
    assert served.post(CHAT, headers=JSON, content=b" " * 10_000).status_code == 400


def test_a_model_without_a_chat_template_says_so(serve: Any, script_decoder: Any, byte_level_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(byte_level_tokenizer)
    tokenizer.chat_template = None
    served = serve(script_decoder("hi", 1), tokenizer=tokenizer)
    answer = served.chat()
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "no_chat_template"
    assert served.post(TEXT, json={"model": MODEL, "prompt": "a"}).status_code == 200


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Conversation roles must alternate') }}",
        "{{ messages[7]['content'] }}",
        "{% for m in messages %}{{ m.content + 1 }}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% if %}",
    ],
)
def test_what_a_chat_template_raises_is_a_400(
    serve: Any, script_decoder: Any, byte_level_tokenizer: Any, template: str
) -> None:
    tokenizer = copy.deepcopy(byte_level_tokenizer)
    tokenizer.chat_template = template
    answer = serve(script_decoder("hi", 1), tokenizer=tokenizer).chat()
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("messages", "chat_template")
    assert "chat template" in error["message"]
