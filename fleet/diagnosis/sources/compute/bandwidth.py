"""Memory bandwidth, one value a run, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import json_object, moment, number, rows


@dataclass(frozen=True, slots=True)
class BandwidthRun:
    at: datetime | None
    read_bytes_per_s: float | None
    write_bytes_per_s: float | None


def parse(text: str) -> tuple[BandwidthRun, ...]:
    """Raises `Unreadable` when no run has a figure."""
    found = []
    for row in rows(json_object(text), "runs"):
        if isinstance(row, dict):
            read, write = (number(row.get(f"{way}_bytes_per_s")) for way in ("read", "write"))
            if read or write:
                found.append(BandwidthRun(moment(row.get("at")), read or None, write or None))
    if not found:
        raise Unreadable("has no runs")
    return tuple(found)
