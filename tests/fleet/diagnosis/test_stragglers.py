"""Median and MAD with a floor; two runs; the domain first."""

from __future__ import annotations

import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from duckfleet.fleet.diagnosis.sources.around.baseline import Baseline, Figure
from duckfleet.fleet.diagnosis.stragglers import baseline_figures, figure_of, is_slow, slow_runs

NARROW, WIDE = Figure(20.0, 0.1), Figure(20.0, 2.0)


def test_slow_is_below_the_floor_and_out_of_the_scatter() -> None:
    assert is_slow(17.9, NARROW) and not is_slow(18.1, NARROW)
    assert not is_slow(17.9, WIDE) and is_slow(11.0, WIDE)


def test_one_slow_run_is_none() -> None:
    assert slow_runs([20.0, 15.0, 15.0], NARROW)
    assert not slow_runs([15.0, 15.0, 20.0], NARROW)
    assert not slow_runs([20.0, 15.0], NARROW) and not slow_runs([15.0], NARROW)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1.0, 1e12), min_size=3, max_size=40))
def test_no_duck_at_or_above_the_median_is_slow(values: list[float]) -> None:
    figure = figure_of(values)
    assert figure is not None and figure.median == statistics.median(values)
    assert not any(is_slow(value, figure) for value in values if value >= figure.median)


def test_a_domain_is_compared_within_itself_first() -> None:
    values = {f"a{i}": 2500.0 for i in range(8)} | {f"b{i}": 1000.0 for i in range(4)}
    whole, domains = baseline_figures(values, {name: name[0] for name in values})
    assert whole is not None and whole.median == 2500.0
    assert domains["b"].median == 1000.0
    baseline = Baseline({"link_mbps": whole}, {name: {"link_mbps": figure} for name, figure in domains.items()})
    assert baseline.figure("link_mbps", "b") == domains["b"] and baseline.figure("link_mbps", "c") == whole


def test_two_ducks_have_no_middle() -> None:
    assert figure_of([1.0, 2.0]) is None
