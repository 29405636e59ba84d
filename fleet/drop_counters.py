"""Ask ducks and the server, now and in bounded time, what they got and would not have, by kind."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field

from duckfleet.fleet.reach import connect, on_all
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.wire import FleetKeys

TIMEOUT_S = 2.0
"""Of connecting, and of the answer, each."""


CONTROL_KINDS = (
    "malformed",
    "wrong_version",
    "unknown_type",
    "auth_missing",
    "auth_failed",
    "timeouts",
    "evicted",
    "refused",
    "refusals",
    "chunks_refused",
)
"""Of the control plane's counters those that are about something wrong."""


@dataclass(frozen=True, slots=True)
class DropCounters:
    """Since the start; `error` says why there are none. Kinds are those of docs/wire.md.

    `dropped` counts datagrams, `control` what happened to connections and frames of the control plane.
    """

    received: int | None
    dropped: dict[str, int] = field(default_factory=dict)
    error: str = ""
    control: dict[str, int] = field(default_factory=dict)


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
    control = stats.get("control") if isinstance(stats, dict) else None
    refused = {k: control[k] for k in CONTROL_KINDS if _is_count(control.get(k))} if isinstance(control, dict) else {}
    return DropCounters(received if _is_count(received) else None, dropped, control=refused)


def ask_server(url: str) -> DropCounters:
    """What the host's own sockets dropped, out of the /metrics of the server that has them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read(1 << 20).decode(errors="replace")
    except OSError as error:
        return DropCounters(None, error=f"{url}/metrics: {error}")
    found = re.findall(r'^duckfleet_fabric_drops\{kind="(\w+)"\} (\d+)', text, re.MULTILINE)
    return DropCounters(None, {kind: int(count) for kind, count in found})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
