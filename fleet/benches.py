"""The contract of every benchmark: where it is, how it is called, and the one object it prints.

A benchmark is a function `rows` in a module of the part that it measures. It takes keyword arguments with defaults and
yields mappings: name, value, unit, and (where there is an honest denominator) ratio and against. Names are stable. A
unit of which less is better says so, as in "us, lower is better".
"""

from __future__ import annotations

import inspect
import os
import platform
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.inventory.errors import InternalError, OperatorError

BENCHES = {
    "kernels": "duckfleet.fp9_kernels.bench",
    "layer": "duckfleet.runtime.bench.layer",
    "context": "duckfleet.runtime.bench.context",
    "fabric": "duckfleet.runtime.fabric.bench",
    "plan": "duckfleet.runtime.planner.bench",
    "failover": "duckfleet.runtime.fabric.bench_failover",
    "place": "duckfleet.fleet.bench.place",
    "decode": "duckfleet.fleet.bench.decode",
    "prefill": "duckfleet.fleet.bench.prefill",
    "boot": "duckfleet.fleet.bench.boot",
    "restart": "duckfleet.fleet.bench.restart",
    "probe": "duckfleet.fleet.bench.probe",
}
"""Name -> module with the function `rows`. Loaded by the composition root only when its bench is asked for."""

Rows = Callable[..., Iterable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measured figure."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""


def checked(row: Mapping[str, Any]) -> BenchRow:
    """A row as the contract wants it. Raises `InternalError` for one that is not."""
    try:
        ratio = row.get("ratio")
        made = BenchRow(
            str(row["name"]),
            float(row["value"]),
            str(row["unit"]),
            None if ratio is None else float(ratio),
            str(row.get("against") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InternalError(f"a benchmark gave the row {dict(row)!r}: {error!r}") from error
    unknown = set(row) - {"name", "value", "unit", "ratio", "against"}
    if unknown or (made.ratio is None) != (not made.against):
        raise InternalError(f"a benchmark gave the row {dict(row)!r}: a ratio comes with what it is against, no more")
    return made


def options_for(rows: Rows, arguments: Sequence[str]) -> dict[str, Any]:
    """`--tp 32 --peer` as keyword arguments of `rows`, converted to their types.

    Raises `OperatorError` that lists what the benchmark takes.
    """
    parameters = inspect.signature(rows).parameters
    hints = typing.get_type_hints(rows)
    options: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in parameters:
            raise OperatorError(
                f"this benchmark does not take {flag!r}; it takes {describe_options(rows) or 'nothing'}"
            )
        kind = _plain_type(hints.get(name, str))
        if kind is bool and not equals:
            options[name] = True
            continue
        if not equals:
            if not rest:
                raise OperatorError(f"{flag} wants a value")
            value = rest.pop(0)
        try:
            options[name] = value.lower() in ("1", "true", "yes") if kind is bool else kind(value)
        except ValueError as error:
            raise OperatorError(f"{flag} {value!r}: {error}") from error
    return options


def describe_options(rows: Rows) -> str:
    """The options of a benchmark with their defaults, as one line."""
    found = []
    for name, parameter in inspect.signature(rows).parameters.items():
        default = "" if parameter.default in (None, False, inspect.Parameter.empty) else f" {parameter.default}"
        found.append(f"--{name.replace('_', '-')}{default}")
    return ", ".join(found)


def _plain_type(hint: Any) -> type:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(choice for choice in typing.get_args(hint) if choice is not type(None))
    return hint if hint in (int, float, str, bool, Path) else str


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = "unknown"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except OSError:
        memory_bytes = 0
    return {
        "cpu": cpu,
        "num_cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }
