"""GB/s of fixed kernels, one figure a minute, oldest run first. The later half counts: it is past the turbo window."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import json_object, moment, number, rows, table


@dataclass(frozen=True, slots=True)
class KernelRun:
    at: datetime | None
    gb_per_s: tuple[tuple[str, float], ...]  # sustained, by kernel name


def parse(text: str) -> tuple[KernelRun, ...]:
    """Raises `Unreadable` when no run has a figure."""
    found = []
    for row in rows(json_object(text), "runs"):
        figures = []
        for name, values in sorted(table(row, "gb_per_s").items()):
            numbers = [value for value in map(number, values if isinstance(values, list) else [values]) if value]
            if numbers:
                figures.append((name, statistics.median(numbers[len(numbers) // 2 :])))
        if figures:
            found.append(KernelRun(moment(row.get("at")), tuple(figures)))
    if not found:
        raise Unreadable("has no runs")
    return tuple(found)
