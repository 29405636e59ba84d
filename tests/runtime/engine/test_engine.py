"""The engine over a real tiny model, and over scripted ones where the text matters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from duckfleet.inventory.errors import InternalError
from duckfleet.runtime.decoder import ContextFull
from duckfleet.runtime.engine import (
    ContextOverflow,
    Engine,
    EngineClosed,
    GenerationCancelled,
    GenerationRequest,
    InvalidRequest,
    QueueFull,
    SamplingParams,
    TokenEvent,
    UnusableLogits,
)
from duckfleet.runtime.errors import DuckLost

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture
def engine(llama: Any, byte_level_tokenizer: Any) -> Iterator[Engine]:
    with Engine(llama.decoder, byte_level_tokenizer, ctx=128, max_queue=2, max_active=2, prefill_chunk_len=5) as engine:
        yield engine


def drawn(events: Sequence[TokenEvent], choice: int = 0) -> list[int]:
    return [event.token_id for event in events if event.choice == choice and event.token_id is not None]


def text_of(events: Sequence[TokenEvent], choice: int = 0) -> str:
    return "".join(event.text for event in events if event.choice == choice)


def reference(llama: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Greedy, without a cache."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        with torch.inference_mode():
            tokens.append(int(llama.model(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] in llama.decoder.eos_token_ids:
            break
    return tokens[len(prompt) :]


def test_greedy_equals_the_model_without_a_cache(engine: Engine, llama: Any) -> None:
    prompt = tuple(range(10, 23))
    events = list(engine.submit(GenerationRequest((prompt,), GREEDY)))
    assert drawn(events) == reference(llama, prompt, 12)
    assert events[-1].finish_reason in ("stop", "length")


def test_choices_of_several_prompts_equal_single_requests(engine: Engine) -> None:
    prompts = ((5, 6, 7), tuple(range(40, 52)))
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=9)
    together = list(engine.submit(GenerationRequest(prompts, sampling, n=3)))
    for i, prompt in enumerate(prompts):
        apart = list(engine.submit(GenerationRequest((prompt,), sampling, n=3)))
        for k in range(3):
            assert drawn(together, 3 * i + k) == drawn(apart, k)
    assert len({tuple(drawn(together, k)) for k in range(3)}) == 3, "choices of one prompt draw differently"


def test_seed_decides(engine: Engine) -> None:
    def run(seed: int | None) -> list[int]:
        sampling = SamplingParams(temperature=1.5, seed=seed, max_tokens=16)
        return drawn(list(engine.submit(GenerationRequest(((1, 2, 3),), sampling))))

    assert run(11) == run(11)
    assert run(11) != run(12)
    assert run(-5) == run(-5)
    assert run(None) != run(None)


def test_requests_take_turns(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    decoder = script_decoder("x" * 50, prompt_len=3)
    decoder.gate = threading.Semaphore(0)
    with Engine(decoder, byte_level_tokenizer, ctx=64, max_active=2, prefill_chunk_len=2) as engine:
        first = engine.submit(GenerationRequest(((10, 11, 12),), SamplingParams(max_tokens=3)))
        second = engine.submit(GenerationRequest(((20, 21, 22),), SamplingParams(max_tokens=3)))
        decoder.gate.release(100)
        list(first), list(second)
    x = byte_level_tokenizer.encode("x")[0]
    in_turn = [(10, 11), (20, 21), (12,), (22,), (x,), (x,), (x,), (x,)]
    # The first request may have had one turn before the second came.
    assert decoder.fed == in_turn or sorted(decoder.fed) == sorted(in_turn)


def test_queue_is_bounded_and_frees_its_places(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    decoder = script_decoder("x" * 50, prompt_len=1)
    decoder.gate = threading.Semaphore(0)
    request = GenerationRequest(((10,),), SamplingParams(max_tokens=2))
    with Engine(decoder, byte_level_tokenizer, ctx=64, max_active=1, max_queue=2) as engine:
        accepted = [engine.submit(request) for _ in range(3)]
        with pytest.raises(QueueFull):
            engine.submit(request)
        accepted[2].cancel()
        with pytest.raises(GenerationCancelled):
            list(accepted[2])
        replacement = engine.submit(request)
        with pytest.raises(QueueFull):
            engine.submit(request)
        decoder.gate.release(100)
        for generation in (accepted[0], accepted[1], replacement):
            assert list(generation)[-1].finish_reason == "length"
        assert engine.stats().num_finished == 3
        assert engine.stats().num_cancelled == 1
        assert engine.stats().num_active == engine.stats().num_waiting == 0


def test_cancel_stops_before_the_next_forward(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    decoder = script_decoder("x" * 500, prompt_len=1)
    decoder.gate = threading.Semaphore(5)
    with Engine(decoder, byte_level_tokenizer, ctx=600) as engine:
        generation = engine.submit(GenerationRequest(((10,),)))
        events = iter(generation)
        for _ in range(5):
            next(events)
        generation.cancel("enough")
        decoder.gate.release(100)  # one forward was waiting at the gate
        with pytest.raises(GenerationCancelled, match="enough"):
            list(events)
        assert len(decoder.fed) <= 6
        assert (
            list(engine.submit(GenerationRequest(((10,),), SamplingParams(max_tokens=3))))[-1].finish_reason == "length"
        )
        assert decoder.num_caches == 1, "a cancelled request gives its cache back"


def test_a_lost_duck_ends_its_request_only(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    decoder = script_decoder("hello", prompt_len=1)
    says, broken = decoder.next_token, [True]

    def next_token(tokens: list[int]) -> int:
        if tokens[0] == 66 and len(tokens) == 3 and broken[0]:
            raise DuckLost("duck 127.21.1.103 did not answer within 2 s")
        return says(tokens)

    decoder.next_token = next_token
    with Engine(decoder, byte_level_tokenizer, ctx=64) as engine:
        bad, good = (
            engine.submit(GenerationRequest(((66,),), GREEDY)),
            engine.submit(GenerationRequest(((10,),), GREEDY)),
        )
        seen = []
        with pytest.raises(DuckLost, match=r"127\.21\.1\.103"):
            for event in bad:
                seen.append(event)
        assert 1 <= len(seen) <= 2, "what was drawn before is not lost"
        assert text_of(list(good)) == "hello"
        broken[0] = False
        assert text_of(list(engine.submit(GenerationRequest(((66,),), GREEDY)))) == "hello"
        assert engine.stats().num_failed == 1


def test_bugs_and_unusable_logits_end_the_request_only(
    script_decoder: Callable[..., Any], byte_level_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = script_decoder("hello", prompt_len=1)
    forward = decoder.forward

    def broken(tokens: Sequence[int], cache: Any, *, all_logits: bool = False) -> torch.Tensor:
        if tokens[0] == 1:
            raise RuntimeError("shape of x")
        return forward(tokens, cache, all_logits=all_logits) * (float("nan") if tokens[0] == 2 else 1.0)

    decoder.forward = broken
    with Engine(decoder, byte_level_tokenizer, ctx=64) as engine:
        with pytest.raises(InternalError, match="RuntimeError: shape of x"):
            list(engine.submit(GenerationRequest(((1,),), GREEDY)))
        with pytest.raises(UnusableLogits):
            list(engine.submit(GenerationRequest(((2,),), GREEDY)))
        assert text_of(list(engine.submit(GenerationRequest(((3,),), GREEDY)))) == "hello"
    assert "a forward failed" in caplog.text


def test_context_and_vocabulary_are_checked(engine: Engine) -> None:
    fits = GenerationRequest((tuple([9] * 100),), SamplingParams(temperature=0.0, max_tokens=28))
    assert len(drawn(list(engine.submit(fits)))) <= 28
    with pytest.raises(ContextOverflow, match=r"holds 128 tokens, but 129 were asked for \(100 in the prompt, 29"):
        engine.submit(GenerationRequest((tuple([9] * 100),), SamplingParams(max_tokens=29)))
    with pytest.raises(ContextOverflow):
        engine.submit(GenerationRequest((tuple([9] * 128),)))
    with pytest.raises(InvalidRequest, match="token id 100000"):
        engine.submit(GenerationRequest(((1, 100000),)))
    with pytest.raises(InvalidRequest, match="token id 99999"):
        engine.submit(GenerationRequest(((1,),), SamplingParams(logit_bias={99999: 1.0})))


def test_a_context_that_the_model_has_not_is_refused_at_once(llama: Any, byte_level_tokenizer: Any) -> None:
    with pytest.raises(ContextFull, match="512 positions"):
        Engine(llama.decoder, byte_level_tokenizer, ctx=513)


def test_without_max_tokens_the_context_ends_it(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    with Engine(script_decoder("x" * 500, prompt_len=4), byte_level_tokenizer, ctx=32) as engine:
        generation = engine.submit(GenerationRequest(((1, 2, 3, 4),)))
        events = list(generation)
    assert len(drawn(events)) == 28
    assert events[-1].finish_reason == "length"


def test_prompt_is_scored(engine: Engine, llama: Any) -> None:
    prompt = tuple(range(30, 47))
    sampling = SamplingParams(temperature=0.0, max_tokens=0, logprobs=2)
    events = list(engine.submit(GenerationRequest((prompt,), sampling, n=2, score_prompt=True)))
    assert [(event.choice, event.token_id, event.finish_reason) for event in events] == [
        (0, None, "length"),
        (1, None, "length"),
    ]
    scores = events[0].prompt_logprobs
    assert scores is not None
    assert scores[0] is None
    with torch.inference_mode():
        expected = llama.model(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
    for i in range(1, len(prompt)):
        score = scores[i]
        assert score is not None
        assert score.token_id == prompt[i]
        assert score.logprob == pytest.approx(float(expected[i - 1, prompt[i]]), abs=1e-4)
        assert [top.token_id for top in score.top] == expected[i - 1].topk(2).indices.tolist()


def test_metrics_count(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    ticks = iter(range(1000))
    with Engine(
        script_decoder("hello hello", prompt_len=5),
        byte_level_tokenizer,
        ctx=64,
        prefill_chunk_len=2,
        clock=lambda: next(ticks),
    ) as engine:
        generation = engine.submit(GenerationRequest(((1, 2, 3, 4, 5),), SamplingParams(temperature=0.0, max_tokens=3)))
        list(generation)
        metrics = generation.metrics
        stats = engine.stats()
    assert (metrics.prompt_tokens, metrics.completion_tokens, metrics.num_forwards) == (5, 3, 5)
    assert (metrics.prepare_us, metrics.send_us, metrics.wait_us, metrics.fetch_us) == (5.0, 10.0, 15.0, 20.0)
    assert metrics.ttft_s is not None
    assert metrics.ttft_s > metrics.queue_s > 0
    assert metrics.tokens_per_s == pytest.approx(2 / metrics.decode_s)
    assert (stats.num_forwards, stats.wait_us) == (5, 15.0)


def test_async_iteration(engine: Engine, llama: Any) -> None:
    prompt = (3, 1, 4, 1, 5)

    async def run() -> list[TokenEvent]:
        return [event async for event in engine.submit(GenerationRequest((prompt,), GREEDY))]

    async def both() -> list[list[TokenEvent]]:
        return await asyncio.gather(run(), run())

    for events in asyncio.run(both()):
        assert drawn(events) == reference(llama, prompt, 12)


def test_a_closed_engine_cuts_and_refuses(script_decoder: Callable[..., Any], byte_level_tokenizer: Any) -> None:
    decoder = script_decoder("x" * 500, prompt_len=1)
    decoder.gate = threading.Semaphore(2)
    engine = Engine(decoder, byte_level_tokenizer, ctx=600, max_active=1)
    running, waiting = (engine.submit(GenerationRequest(((10,),))) for _ in range(2))
    events = iter(running)
    next(events)
    closer = threading.Thread(target=engine.close)
    closer.start()
    with pytest.raises(GenerationCancelled, match="closed"):
        list(waiting)
    decoder.gate.release(10)
    with pytest.raises(GenerationCancelled, match="closed"):
        list(events)
    closer.join()
    with pytest.raises(EngineClosed):
        engine.submit(GenerationRequest(((10,),)))
    assert not engine.healthy
