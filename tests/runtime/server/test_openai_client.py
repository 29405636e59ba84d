"""The official client drives every parameter that docs/api.md lists."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest

MODEL = "tiny-llama"
HELLO: Any = [{"role": "user", "content": "hello duck"}]


@pytest.fixture(scope="module")
def client(served: Any) -> openai.OpenAI:
    return served.openai()


def ask(client: openai.OpenAI, **options: Any) -> str:
    options = {"messages": HELLO, "temperature": 0, "max_tokens": 12, **options}
    text = client.chat.completions.create(model=MODEL, **options).choices[0].message.content
    assert text is not None
    return text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "duckfleet"
    with pytest.raises(openai.NotFoundError, match="other"):
        client.models.retrieve("other/model")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_completion_tokens=5)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.model_extra is not None
    assert answer.model_extra["timings"]["num_forwards"] == 5
    assert answer._request_id is not None
    assert answer._request_id.startswith("req-")


def test_stream_says_the_same_as_the_whole(client: openai.OpenAI) -> None:
    whole = ask(client)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole
    assert chunks[-2].choices[0].finish_reason in ("length", "stop")
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens >= 1
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_without_usage_has_none(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


def test_an_integer_may_be_written_with_a_point(client: openai.OpenAI) -> None:
    assert ask(client, extra_body={"n": 1.0, "max_tokens": 12.0, "seed": 1e3}) == ask(client)


def test_content_parts_are_joined(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "hello "}, {"type": "text", "text": "duck"}]
    assert ask(client, messages=[{"role": "user", "content": parts}]) == ask(client)


def test_roles_and_what_a_client_sends_back(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=4).choices[0].message
    conversation = [
        {"role": "system", "content": "You are a duck."},
        {"role": "user", "content": "hello", "name": "ann"},
        answer.model_dump(),
        {"role": "user", "content": "go on"},
    ]
    said = ask(client, messages=conversation)
    conversation[0] = {"role": "developer", "content": "You are a duck."}
    assert ask(client, messages=conversation) == said


def test_seed_temperature_and_the_other_filters(client: openai.OpenAI) -> None:
    def draw(seed: int | None, **more: Any) -> str:
        return ask(client, **{"temperature": 1.5, "seed": seed, "max_tokens": 16, **more})

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(None) != draw(None)
    greedy = ask(client, max_tokens=16)
    assert draw(1, top_p=0.0) == greedy
    assert draw(1, extra_body={"top_k": 1}) == greedy
    assert draw(1, extra_body={"min_p": 1.0}) == greedy
    assert draw(1, extra_body={"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}) == draw(1)
    assert ask(client, max_tokens=16, extra_body={"repetition_penalty": 1.9}) != greedy


def test_penalties_and_bias(client: openai.OpenAI, served: Any) -> None:
    token = served.engine.tokenizer.encode("x")[0]
    loop = ask(client, logit_bias={str(token): 100}, max_tokens=10)
    assert loop == "x" * 10
    assert ask(client, logit_bias={str(token): 60}, frequency_penalty=2.0, max_tokens=60) != "x" * 60
    assert ask(client, logit_bias={str(token): 100}, presence_penalty=2.0, max_tokens=10) == "x" * 10
    banned = {str(served.engine.tokenizer.encode("y")[0]): -100}
    assert "y" not in ask(client, logit_bias=banned)


@pytest.mark.parametrize("stop", [None, "xx", ["never", "xxx"], []])
def test_stop(client: openai.OpenAI, served: Any, stop: Any) -> None:
    bias = {str(served.engine.tokenizer.encode("x")[0]): 100}
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=6, logit_bias=bias, stop=stop
    )
    assert answer.choices[0].message.content == ("" if stop else "xxxxxx")
    assert answer.choices[0].finish_reason == ("stop" if stop else "length")


def test_n_choices(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": HELLO, "temperature": 1.5, "seed": 4, "n": 3, "max_tokens": 8}
    whole = client.chat.completions.create(**options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 24


def test_chat_logprobs(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 6}
    choice = client.chat.completions.create(**options, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0, "greedy draws the likeliest"
    told = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
    assert told.decode(errors="ignore") == choice.message.content
    streamed = []
    for chunk in client.chat.completions.create(**options, logprobs=True, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content or []
    assert [entry.token for entry in streamed] == [entry.token for entry in choice.logprobs.content]
    assert all(entry.top_logprobs == [] for entry in streamed)


def test_what_asks_for_nothing_is_taken(client: openai.OpenAI) -> None:
    assert ask(
        client,
        user="ann",
        metadata={"run": "7"},
        safety_identifier="a1b2",
        response_format={"type": "text"},
        modalities=["text"],
        service_tier="auto",
        store=False,
        tools=[],
        tool_choice="none",
        top_p=None,
        n=None,
        stop=None,
        logit_bias=None,
    ) == ask(client)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="the quick", temperature=0)
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    text = answer.choices[0].text
    stream = client.completions.create(
        model=MODEL, prompt="the quick", temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == answer.usage


def test_completion_prompts_of_every_form(client: openai.OpenAI, served: Any) -> None:
    def texts(prompt: Any, **more: Any) -> list[str]:
        answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=5, **more)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    encode = served.engine.tokenizer.encode
    one, two = texts("the quick"), texts("a fleet of ducks")
    assert texts(["the quick", "a fleet of ducks"]) == one + two
    assert texts(encode("the quick")) == one
    assert texts([encode("the quick"), encode("a fleet of ducks")]) == one + two
    assert texts(["the quick", "a fleet of ducks"], n=2) == one * 2 + two * 2
    assert texts([float(token) for token in encode("the quick")]) == one
    assert texts("") == texts(None) == texts([served.engine.tokenizer.bos_token_id])


def test_completion_echo_and_logprobs(client: openai.OpenAI, served: Any) -> None:
    options: Any = {"model": MODEL, "prompt": "the quick", "temperature": 0, "max_tokens": 4}
    plain = client.completions.create(**options, logprobs=2).choices[0]
    echoed = client.completions.create(**options, logprobs=2, echo=True).choices[0]
    assert echoed.text == "the quick" + plain.text
    assert plain.logprobs is not None
    assert echoed.logprobs is not None
    assert echoed.logprobs.tokens is not None
    num_prompt = len(served.engine.tokenizer.encode("the quick"))
    assert echoed.logprobs.tokens[num_prompt:] == plain.logprobs.tokens
    assert "".join(echoed.logprobs.tokens[:num_prompt]) == "the quick"
    assert echoed.logprobs.token_logprobs is not None
    assert echoed.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in echoed.logprobs.token_logprobs[1:])
    assert echoed.logprobs.text_offset is not None
    assert echoed.logprobs.text_offset[:num_prompt] == sorted(echoed.logprobs.text_offset[:num_prompt])
    assert echoed.logprobs.text_offset[num_prompt] == len("the quick")
    streamed = list(client.completions.create(**options, logprobs=2, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == echoed.text
    tokens = [
        token for chunk in streamed if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.tokens or []
    ]
    assert tokens == echoed.logprobs.tokens
    offsets = [
        o for chunk in streamed if chunk.choices[0].logprobs for o in chunk.choices[0].logprobs.text_offset or []
    ]
    assert offsets == echoed.logprobs.text_offset
    nothing = client.completions.create(**{**options, "max_tokens": 0}, logprobs=1, echo=True).choices[0]
    assert (nothing.text, nothing.finish_reason) == ("the quick", "length")


def test_completion_takes_the_sampling_fields(client: openai.OpenAI, served: Any) -> None:
    bias = {str(served.engine.tokenizer.encode("x")[0]): 100}
    answer = client.completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=8,
        temperature=0.7,
        top_p=0.9,
        seed=3,
        n=2,
        stop=["xxxx"],
        logit_bias=bias,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        best_of=1,
        suffix="",
        user="ann",
        extra_body={"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1},
    )
    assert [choice.text for choice in answer.choices] == ["", ""]


def test_async_client(served: Any) -> None:
    import asyncio

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(
                    model=MODEL, messages=HELLO, temperature=0, max_tokens=10, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one() for _ in range(4)))

    assert len(set(asyncio.run(run()))) == 1


def test_two_clients_at_once(served: Any) -> None:
    client = served.openai()
    expected = [ask(client, messages=[{"role": "user", "content": text}]) for text in ("one", "two")]
    got: dict[int, str] = {}

    def talk(i: int) -> None:
        got[i] = ask(served.openai(), messages=[{"role": "user", "content": ("one", "two")[i]}])

    threads = [threading.Thread(target=talk, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[0], got[1]] == expected


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert missing.value.code == "model_not_found"
