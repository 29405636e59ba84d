"""Ask ducks, now and in bounded time, how many datagrams they got and dropped, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duckfleet.fleet.reach import connect, on_all
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.wire import FleetKeys

TIMEOUT_S = 2.0
"""Of connecting, and of the answer, each."""


@dataclass(frozen=True, slots=True)
class DropCounters:
    """Since the daemon's start; `error` says why there are none. Kinds are those of docs/wire.md."""

    received: int | None
    dropped: dict[str, int] = field(default_factory=dict)
    error: str = ""


def ask_ducks(site: Site, keys: FleetKeys | None, ducks: Sequence[Duck]) -> dict[str, DropCounters]:
    """By MAC; all at once. A duck that does not answer costs at most twice `TIMEOUT_S` and is told as such."""

    def ask(duck: Duck) -> DropCounters:
        with connect(site, duck, keys, TIMEOUT_S) as client:
            return counters_of(client.stats())

    return {
        duck.mac: DropCounters(None, error=str(got)) if isinstance(got, MachineError) else got
        for duck, got in on_all(ducks, ask)
    }


def counters_of(stats: object) -> DropCounters:
    """Pick them out of a duck's statistics; what is no number is left out."""
    data = stats.get("data") if isinstance(stats, dict) else None
    if not isinstance(data, dict):
        return DropCounters(None, error="its statistics have no data plane")
    drops = data.get("drops")
    dropped = {str(k): v for k, v in drops.items() if _is_count(v)} if isinstance(drops, dict) else {}
    received = data.get("datagrams")
    return DropCounters(received if _is_count(received) else None, dropped)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
