"""Measurements as trends: which are shown, under what title, in which unit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckfleet.fleet.report.page import Series, Trend
from duckfleet.inventory.store.records import Measurement


@dataclass(frozen=True, slots=True)
class _Shown:
    title: str
    unit: str
    scale: float
    low_is_bad: bool = True


_SHOWN = {
    "read_bandwidth": _Shown("Memory read bandwidth", "GB/s", 1e-9),
    "write_bandwidth": _Shown("Memory write bandwidth", "GB/s", 1e-9),
    "avx2_mhz": _Shown("Frequency under AVX2 load", "MHz", 1.0),
    "package_temp_c": _Shown("Package temperature under load", "°C", 1.0, low_is_bad=False),
    "ram": _Shown("Memory that the system sees", "GiB", 2.0**-30),
}
_BY_UNIT = {"B/s": ("GB/s", 1e-9), "B": ("GiB", 2.0**-30)}
_BAD_WHEN_HIGH = ("loss", "rtt", "latency", "temp", "error", "_us", "_ms")


def trends_of(measured: Mapping[str, Mapping[str, Sequence[Measurement]]]) -> tuple[Trend, ...]:
    """From measurement -> duck -> values, oldest first; those that are known by name first, in a fixed order."""
    names = [name for name in _SHOWN if name in measured] + sorted(set(measured) - set(_SHOWN))
    return tuple(trend for name in names if (trend := _trend(name, measured[name])).series)


def _trend(name: str, by_duck: Mapping[str, Sequence[Measurement]]) -> Trend:
    units = {row.unit for rows in by_duck.values() for row in rows}
    shown = _SHOWN.get(name) or _unnamed(name, min(units, default=""))
    series = [
        Series(duck, tuple(row.at_s for row in rows), tuple(round(row.value * shown.scale, 4) for row in rows))
        for duck, rows in by_duck.items()
        if rows
    ]
    return Trend(name, shown.title, shown.unit, shown.low_is_bad, tuple(series))


def _unnamed(name: str, unit: str) -> _Shown:
    title = name.replace("_", " ").replace(".", ": ")
    shown_unit, scale = _BY_UNIT.get(unit, (unit, 1.0))
    return _Shown(title[:1].upper() + title[1:], shown_unit, scale, not any(part in name for part in _BAD_WHEN_HIGH))
