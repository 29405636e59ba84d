"""Temperatures and throttle counters, before and under load. Zones that read nonsense are left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

PACKAGE_ZONES = ("x86_pkg_temp", "TCPU", "coretemp", "B0D4")
BOARD_ZONE = "acpitz"  # often a constant: believed only where it says that it is warm
BOARD_WARM_C = 60.0
COLDEST_C, HOTTEST_C = -20.0, 125.0  # beyond these a sensor is not connected


@dataclass(frozen=True, slots=True)
class Heat:
    """None: not read."""

    idle_c: float | None
    load_c: float | None
    throttled: int | None  # how often over the load, the worst core or the package


def parse(text: str) -> Heat:
    """Sections `== before load ==` and `== under load … ==`. Raises `Unreadable` with neither zones nor counters."""
    sections = re.split(r"^== (.*?) ==\s*$", text, flags=re.MULTILINE)
    named = dict(zip(sections[1::2], sections[2::2], strict=True))
    before = next((body for name, body in named.items() if name.startswith("before")), "")
    under = next((body for name, body in named.items() if name.startswith("under")), "")
    if not named:
        before = under = text
    heat = Heat(_package_c(before), _package_c(under), _throttled(before, under))
    if heat == Heat(None, None, None):
        raise not_an_answer(text)
    return heat


def _package_c(text: str) -> float | None:
    types = dict(re.findall(r"/(thermal_zone[0-9]+)/type:(\S+)", text))
    readings: dict[str, float] = {}
    for zone, milli in re.findall(r"/(thermal_zone[0-9]+)/temp:(-?[0-9]{1,9})\s*$", text, re.MULTILINE):
        celsius = int(milli) / 1000
        if COLDEST_C <= celsius <= HOTTEST_C:
            readings[types.get(zone, "")] = celsius
    package = next((readings[name] for name in PACKAGE_ZONES if name in readings), None)
    board = readings.get(BOARD_ZONE, COLDEST_C)
    return board if package is None and board >= BOARD_WARM_C else package


def _throttled(before: str, under: str) -> int | None:
    pattern = r"/(cpu[0-9]+/thermal_throttle/\w+_throttle_count):([0-9]{1,15})\s*$"
    first = {name: int(count) for name, count in re.findall(pattern, before, re.MULTILINE)}
    second = {name: int(count) for name, count in re.findall(pattern, under, re.MULTILINE)}
    if not second:
        return None
    return max(max(0, count - first.get(name, 0)) for name, count in second.items())
