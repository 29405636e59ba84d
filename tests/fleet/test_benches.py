"""The contract of benchmarks: rows, options, and one object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet import compose
from duckfleet.fleet.benches import BENCHES, BenchRow, checked, describe_options, machine, options_for
from duckfleet.inventory.errors import InternalError, OperatorError


def rows(tp: int = 4, peer: bool = False, model: str = "tiny", path: Path | None = None) -> Iterator[Mapping[str, Any]]:
    yield {}


def test_options_become_keyword_arguments_of_their_types() -> None:
    assert options_for(rows, ["--tp", "32", "--peer", "--path=/x"]) == {"tp": 32, "peer": True, "path": Path("/x")}
    assert options_for(rows, []) == {}
    assert describe_options(rows) == "--tp 4, --peer, --model tiny, --path"


@pytest.mark.parametrize("arguments", [["--nope", "1"], ["tp"], ["--tp"], ["--tp", "x"]])
def test_options_that_a_benchmark_does_not_take_are_refused(arguments: list[str]) -> None:
    with pytest.raises(OperatorError):
        options_for(rows, arguments)


def test_a_row_is_a_figure_and_perhaps_a_ratio_with_what_it_is_against() -> None:
    assert checked({"name": "a", "value": 1, "unit": "GB/s"}) == BenchRow("a", 1.0, "GB/s")
    row = checked({"name": "a", "value": 1, "unit": "GB/s", "ratio": 0.5, "against": "read limit, same run"})
    assert (row.ratio, row.against) == (0.5, "read limit, same run")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"name": "a", "value": "fast", "unit": "x"},
        {"name": "a", "value": 1, "unit": "x", "ratio": 1.0},
        {"name": "a", "value": 1, "unit": "x", "against": "y"},
        {"name": "a", "value": 1, "unit": "x", "extra": 1},
    ],
)
def test_a_row_that_is_not_one_is_a_bug(bad: Mapping[str, Any]) -> None:
    with pytest.raises(InternalError):
        checked(bad)


def test_every_benchmark_of_the_list_is_there_says_what_it_measures_and_runs_without_options() -> None:
    found = {bench.name: bench for bench in compose.available_benches()}
    for bench in found.values():
        assert len(bench.about) > 20
        options_for(bench.rows, [])
    assert {"boot", "decode", "layer"} <= set(found) <= set(BENCHES)


def test_an_unknown_benchmark_is_refused_with_those_there_are() -> None:
    with pytest.raises(OperatorError, match="decode"):
        compose.run_bench("nonsense", [])


def test_the_machine_is_described() -> None:
    described = machine()
    assert described["num_cpus"] >= 1
    assert described["memory_bytes"] > 1 << 28
