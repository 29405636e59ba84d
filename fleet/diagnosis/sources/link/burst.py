"""Our burst test with the host, both ways: loss, duplicates, round trips, the largest frame that passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import json_object, number, table, whole


@dataclass(frozen=True, slots=True)
class Burst:
    """Shares are of the datagrams sent. Round trips: the median and p99 bear a stepped clock, the maximum does not."""

    lost_to_duck: float
    lost_from_duck: float
    rtt_p50_us: float | None
    rtt_p99_us: float | None
    mtu_passed: int | None

    @property
    def lost(self) -> float:
        return max(self.lost_to_duck, self.lost_from_duck)


def parse(text: str) -> Burst:
    """Raises `Unreadable` when nothing was sent or the report says that it could not run."""
    return from_json(json_object(text))


def from_json(report: Mapping[str, Any]) -> Burst:
    """Raises `Unreadable` when nothing was sent."""
    to_duck, from_duck = _lost(table(report, "to_duck")), _lost(table(report, "from_duck"))
    if to_duck is None or from_duck is None:
        raise Unreadable("sent nothing")
    trips = table(report, "rtt_us")
    return Burst(
        to_duck, from_duck, number(trips.get("p50")), number(trips.get("p99")), whole(report.get("mtu_passed"))
    )


def _lost(way: Mapping[str, Any]) -> float | None:
    sent, received = whole(way.get("sent")), whole(way.get("received"))
    if not sent or sent < 0 or received is None or received < 0:
        return None
    return max(0.0, 1 - received / sent)
