"""The dealing cycle: fair at every prefix."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckfleet.runtime.planner.deal import deal


@given(st.lists(st.integers(1, 50), min_size=1, max_size=24))
@settings(deadline=None)
def test_every_prefix_is_within_one_unit_of_the_quota(weights):
    d = deal(weights)
    counts = [0] * len(weights)
    turns = [d.prefix[r][-1] for r in range(len(weights))]
    for step, rank in enumerate(d.order, start=1):
        counts[rank] += 1
        for r, count in enumerate(counts):
            assert abs(count - Fraction(step * turns[r], d.length)) < 1
            assert d.dealt(r, step) == count
    assert d.dealt(0, 3 * d.length + 1) == 3 * counts[0] + (d.order[0] == 0)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=16))
@settings(deadline=None)
def test_turns_follow_the_weights(weights):
    d = deal(weights)
    for r, w in enumerate(weights):
        share = d.prefix[r][-1] / d.length
        assert share == pytest.approx(w / sum(weights), abs=1 / (64 * len(weights)))


def test_equal_weights_are_plain_rotation():
    assert deal([2.5] * 5).order == (0, 1, 2, 3, 4)


def test_simple_ratios_stay_simple():
    assert deal([2, 1, 1]).length == 4


@pytest.mark.parametrize("weights", [[], [1, 0], [1, -1], [1, float("nan")], [float("inf")]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="positive and finite"):
        deal(weights)
