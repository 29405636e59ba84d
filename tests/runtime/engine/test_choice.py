"""One completion: text, log probabilities and stop strings belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckfleet.runtime.engine import SamplingParams, TokenEvent
from duckfleet.runtime.engine.choice import Choice
from duckfleet.runtime.engine.sampler import Sampler
from duckfleet.runtime.engine.token_bytes import TokenBytes


def say(tokenizer: Any, token_ids: list[int], **sampling: Any) -> list[TokenEvent]:
    """Force the tokens, then the end."""
    params = SamplingParams(temperature=0.0, **sampling)
    vocab_size, eos = len(tokenizer), tokenizer.eos_token_id
    choice = Choice(
        0,
        Sampler(params, [], vocab_size),
        params,
        TokenBytes.of(tokenizer),
        frozenset([eos]),
        params.max_tokens or 1000,
    )
    events = []
    for token in [*token_ids, eos]:
        logits = np.zeros(vocab_size, dtype=np.float32)
        logits[token] = 9.0
        events.append(choice.step(logits))
        if events[-1].finish_reason:
            break
    return events


def shown(events: list[TokenEvent]) -> str:
    return "".join(event.text for event in events)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab 🦆é\n", max_size=30),
    stops=st.lists(st.text("ab 🦆é\n", min_size=1, max_size=5), max_size=3),
)
def test_text_ends_before_the_stop_and_logprobs_cover_what_is_shown(
    byte_level_tokenizer: Any, text: str, stops: list[str]
) -> None:
    ids = byte_level_tokenizer.encode(text, add_special_tokens=False)
    events = say(byte_level_tokenizer, ids, stop=tuple(stops), logprobs=1)
    said = shown(events)
    assert text.startswith(said)
    assert not any(stop in said for stop in stops)
    assert events[-1].finish_reason == "stop"
    entries = [entry.token_id for event in events for entry in event.logprobs]
    assert entries == ids[: len(entries)]
    table = TokenBytes.of(byte_level_tokenizer)
    covered = b"".join(table[token] for token in entries)
    if events[-1].stop_string is None:
        assert (said, entries) == (text, ids)
    else:
        assert (said + events[-1].stop_string) in text
        assert said.encode().startswith(covered), "a token that reaches into the stop string would show part of it"
    so_far = ""
    num_entries = 0
    for event in events:
        so_far += event.text
        num_entries += len(event.logprobs)
        if event.finish_reason is None:
            told = b"".join(table[token] for token in entries[:num_entries])
            assert so_far.encode().startswith(told), "log probabilities run ahead of the text"


def test_a_special_token_can_be_a_stop_string(byte_level_tokenizer: Any) -> None:
    hello = byte_level_tokenizer.encode("hello", add_special_tokens=False)
    start = byte_level_tokenizer.convert_tokens_to_ids("<|im_start|>")
    events = say(byte_level_tokenizer, [*hello, start, *hello], stop=("<|im_start|>",))
    assert shown(events) == "hello"
    assert events[-1].stop_string == "<|im_start|>"


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, "a"), (2, "a"), (4, "a"), (5, "a🦆"), (6, "a🦆b")])
def test_a_character_cut_by_the_length_is_dropped(byte_level_tokenizer: Any, max_tokens: int, expected: str) -> None:
    ids = byte_level_tokenizer.encode("a🦆b", add_special_tokens=False)
    events = say(byte_level_tokenizer, ids, max_tokens=max_tokens, logprobs=0)
    assert shown(events) == expected
    assert events[-1].finish_reason == "length"
    assert sum(len(event.logprobs) for event in events) == max_tokens


def test_what_only_looked_like_a_stop_is_shown_at_the_end(byte_level_tokenizer: Any) -> None:
    ids = byte_level_tokenizer.encode("one EN", add_special_tokens=False)
    assert shown(say(byte_level_tokenizer, ids, stop=("END",))) == "one EN"
    assert shown(say(byte_level_tokenizer, ids, stop=("END",), max_tokens=len(ids))) == "one EN"


def test_a_stop_in_the_last_token_is_a_stop(byte_level_tokenizer: Any) -> None:
    ids = byte_level_tokenizer.encode("one END", add_special_tokens=False)
    last = say(byte_level_tokenizer, ids, stop=("END",), max_tokens=len(ids))[-1]
    assert (last.finish_reason, last.stop_string) == ("stop", "END")
