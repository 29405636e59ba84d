"""The benchmarks of this build, by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duckfleet.fleet.benches import BENCHES, BenchRow, Rows, checked, options_for
from duckfleet.inventory.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark of this build."""

    name: str
    rows: Rows
    about: str


def available_benches() -> list[Bench]:
    """The benchmarks of which this build has the module."""
    return [_load_bench(name) for name, module in BENCHES.items() if _has_module(module)]


def run_bench(name: str, arguments: Sequence[str]) -> Iterator[BenchRow]:
    """Rows as they are measured. Raises `OperatorError` for a name or an option that there is not."""
    if name not in BENCHES or not _has_module(BENCHES[name]):
        there = ", ".join(bench.name for bench in available_benches())
        raise OperatorError(f"no benchmark {name!r}; there are {there}")
    bench = _load_bench(name)
    options = options_for(bench.rows, arguments)
    return (checked(row) for row in bench.rows(**options))


def _load_bench(name: str) -> Bench:
    module = importlib.import_module(BENCHES[name])
    about = (module.__doc__ or "").strip().splitlines()
    return Bench(name, module.rows, about[0] if about else "")


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
