"""The sampler against the steps of `transformers`, and its own promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from duckfleet.runtime.engine import SamplingParams, UnusableLogits
from duckfleet.runtime.engine.errors import InvalidRequest
from duckfleet.runtime.engine.sampler import F32, Sampler, candidates, token_logprob

# No two logits nearly equal: which of two equals is kept is not defined by transformers.
logit_rows = hnp.arrays(np.int32, st.integers(2, 50), elements=st.integers(-1000, 1000), unique=True).map(
    lambda steps: (steps / 50).astype(np.float32)
)


def oracle(logits: F32, params: SamplingParams, prompt: list[int]) -> torch.Tensor:
    """Probabilities [vocab] by transformers' processors in its order, in f64."""
    ids, scores = torch.tensor([prompt or [0]]), torch.from_numpy(logits).double()[None]
    steps = []
    if params.repetition_penalty != 1.0 and prompt:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(min(params.top_k, logits.size)))
    if params.top_p < 1.0:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        steps.append(MinPLogitsWarper(params.min_p))
    for step in steps:
        scores = step(ids, scores)
    return scores[0].softmax(-1)


@settings(max_examples=300, deadline=None)
@given(
    logits=logit_rows,
    temperature=st.floats(0.1, 2.0),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.05, 0.99) | st.just(1.0),
    min_p=st.floats(0.0, 0.9),
    penalty=st.sampled_from([0.876543, 1.0, 1.234567]),
    data=st.data(),
)
def test_candidates_are_those_of_transformers(
    logits: F32, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float, data: st.DataObject
) -> None:
    prompt = data.draw(st.lists(st.integers(0, logits.size - 1), max_size=5))
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty, seed=1
    )
    expected = oracle(logits, params, prompt)
    scores = Sampler(params, prompt, logits.size)._adjusted(logits)
    ids, weights = candidates(scores, params)
    got = np.zeros(logits.size)
    got[slice(None) if ids is None else ids] = weights / weights.sum()
    differing = np.flatnonzero((got > 0) != (expected.numpy() > 0))
    if differing.size == 0:
        np.testing.assert_allclose(got, expected.numpy(), atol=1e-9)
        return
    # A candidate at the very edge of top-p or min-p may fall to either side of it by rounding.
    weight = np.exp((scores - scores.max()) / temperature)
    ranked = np.sort(weight)[::-1][: top_k or None]
    at_top_p = np.isclose(ranked.cumsum() / ranked.sum(), top_p, atol=1e-9).any()
    assert differing.size == 1
    assert at_top_p or np.isclose(weight[differing[0]], min_p, rtol=1e-9)


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    sampler = Sampler(SamplingParams(seed=5), [], 4)
    counts = np.bincount([sampler.draw(logits) for _ in range(8000)], minlength=4) / 8000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.125, 0.125], atol=0.03)


def test_a_large_vocabulary_takes_the_same_nucleus() -> None:
    """Top-p sorts only the best candidates at first; a flat distribution makes it look further."""
    rng = np.random.default_rng(1)
    scores = rng.normal(0, 0.3, 20000)
    ids, weights = candidates(scores, SamplingParams(top_p=0.7))
    probabilities = np.exp(scores) / np.exp(scores).sum()
    order = np.argsort(-probabilities)
    count = int(np.searchsorted(probabilities[order].cumsum(), 0.7)) + 1
    assert ids is not None
    assert set(ids.tolist()) == set(order[:count].tolist())
    assert weights.size == count


@given(logits=logit_rows, seed=st.integers(-(2**63), 2**63 - 1))
def test_equal_seeds_draw_equally(logits: F32, seed: int) -> None:
    def run(choice: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed), [], logits.size, choice)
        return [sampler.draw(logits) for _ in range(8)]

    assert run(0) == run(0)
    assert run(3) == run(3)


def test_greedy_ties_go_to_the_lower_id() -> None:
    logits = np.array([0, 5, 5, 1], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0), [], 4).draw(logits) == 1


def test_extremes() -> None:
    logits = np.array([1.0, 3.0, 2.0, -np.inf], dtype=np.float32)
    for params in (
        SamplingParams(temperature=1e-300, seed=1),
        SamplingParams(top_p=0.0, seed=1),
        SamplingParams(top_k=1, seed=1),
        SamplingParams(min_p=1.0, seed=1),
        SamplingParams(logit_bias={1: 100.0}, seed=1),
    ):
        assert Sampler(params, [], 4).draw(logits) == 1, params
    banned = SamplingParams(temperature=0.0, logit_bias={1: -100.0})
    assert Sampler(banned, [], 4).draw(logits) == 2
    for value in (np.nan, np.inf):
        with pytest.raises(UnusableLogits):
            Sampler(SamplingParams(), [], 4).draw(np.array([0, value, 1, 2], dtype=np.float32))
    with pytest.raises(UnusableLogits):
        Sampler(SamplingParams(), [], 4).draw(np.full(4, -np.inf, dtype=np.float32))


def test_penalties_count_the_completion() -> None:
    logits = np.array([1.0, 0.9, 0.0], dtype=np.float32)
    presence = Sampler(SamplingParams(temperature=0, presence_penalty=0.5), [0, 0], 3)
    assert [presence.draw(logits) for _ in range(4)] == [0, 1, 0, 0], "a penalty once, however often it was drawn"
    frequency = Sampler(SamplingParams(temperature=0, frequency_penalty=0.5), [0, 0], 3)
    assert [frequency.draw(logits) for _ in range(5)] == [0, 1, 0, 1, 0]
    repetition = Sampler(SamplingParams(temperature=0, repetition_penalty=2.0), [0], 3)
    assert repetition.draw(logits) == 1, "the prompt counts as well"


@given(logits=logit_rows, num_top=st.integers(0, 20))
def test_logprobs_are_the_models_own(logits: F32, num_top: int) -> None:
    expected = torch.from_numpy(logits).double().log_softmax(-1)
    got = token_logprob(logits, 1, num_top)
    assert got.logprob == pytest.approx(float(expected[1]), abs=1e-9)
    best = torch.from_numpy(logits).topk(min(num_top, logits.size)).indices
    assert [top.token_id for top in got.top] == best.tolist()
    assert [top.logprob for top in got.top] == pytest.approx(expected[best].tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", 3.0),
        ("presence_penalty", -3.0),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", dict.fromkeys(range(2000), 1.0)),
        ("seed", 2**63),
        ("stop", ("",)),
        ("stop", tuple("abcdefghijklmnopqrstuvw")),
        ("max_tokens", -1),
        ("logprobs", 21),
    ],
)
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert error.value.field == field
