"""Frequency of each core under sustained AVX2 load, by seconds since its begin, and the settings it ran under."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import integer, not_an_answer

TURBO_WINDOW_S = 60  # the short-term power limit lets a box run faster for so long at most


@dataclass(frozen=True, slots=True)
class Frequencies:
    governor: str
    turbo: bool | None
    scaling_max_khz: int | None
    num_online: int | None
    first_mhz: float  # median of the cores in the first seconds
    sustained_mhz: float  # median past the turbo window
    settled_at_s: int | None  # when it first was within 3 % of the sustained frequency and below 97 % of the first
    slowest_mhz: float | None = None  # of the cores, past the turbo window
    preference: str = ""  # energy_performance_preference, where it was noted


def parse(text: str) -> Frequencies:
    """Raises `Unreadable` without rows of frequencies."""
    rows = []
    for line in text.splitlines():
        values = [integer(word) for word in line.split()]
        if len(values) >= 2 and None not in values:
            rows.append((values[0] or 0, [value for value in values[1:] if value is not None]))
    if not rows:
        raise not_an_answer(text)
    settings = dict(re.findall(r"(\w+)=(\S+)", next((line for line in text.splitlines() if line.startswith("#")), "")))
    medians = [(at_s, statistics.median(cores)) for at_s, cores in rows]
    late = [mhz for at_s, mhz in medians if at_s > TURBO_WINDOW_S] or [medians[-1][1]]
    sustained = statistics.median(late)
    if sustained <= 0:
        raise Unreadable("reads 0 MHz")
    first = medians[0][1]
    boost = {"1": True, "0": False}.get(settings.get("boost", ""))
    return Frequencies(
        settings.get("governor", ""),
        {"0": True, "1": False}.get(settings.get("no_turbo", ""), boost),
        integer(settings.get("scaling_max_khz")),
        count_of(settings.get("online", "")),
        first,
        sustained,
        settled_at(medians, sustained),
        slowest_of([cores for at_s, cores in rows if at_s > TURBO_WINDOW_S] or [rows[-1][1]]),
        settings.get("epp") or settings.get("energy_performance_preference", ""),
    )


def slowest_of(late: Sequence[Sequence[float]]) -> float:
    """The core that is slowest over all these rows."""
    num_cores = min(map(len, late))
    return min(statistics.median(cores[index] for cores in late) for index in range(num_cores))


def settled_at(rows: Sequence[tuple[float, float]], sustained_mhz: float) -> int | None:
    """When the clock, that began higher, first was down at what it sustains; None: it began there."""
    if sustained_mhz >= 0.97 * rows[0][1]:
        return None
    return next((int(at_s) for at_s, mhz in rows if mhz <= 1.03 * sustained_mhz), None)


def count_of(online: str) -> int | None:
    """How many CPUs a list like `0-2,4` names."""
    total = 0
    for part in online.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            return None
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total if total > 0 else None
