"""A pond of eight ducks whose store tells of two sick ones, some weeks of measurements, a hold and a lost duck."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.fleet import lifecycle
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.site import Site
from duckfleet.inventory.store import Store
from tests.fleet.diagnosis.reports import fresh_clock, mac, report

NUM_DUCKS = 8
SICK, HELD = 3, 6
SITE = """
[fleet]
name = "pond"

[expect]
ram_gib = 32
link_mbps = 2500

[[domains]]
name = "1"
interface = "lo"
host_address = "10.21.1.1"
nodes = "10.21.1.[101-108]"
mtu = 9000
"""


def name(i: int) -> str:
    return f"d1-{100 + i}"


def healthy(i: int) -> dict[str, Any]:
    """What duckd's probe says of a duck without a fault, at this moment."""
    return fresh_clock(report(i))


def one_module(values: dict[str, Any]) -> dict[str, Any]:
    """The same with one of its memory modules gone."""
    values = copy.deepcopy(values)
    values["memory"]["total_bytes"] //= 2
    values["memory"]["modules"][1] = {"size_bytes": 0, "locator": "DIMM1"}
    return values


@dataclass
class Pond:
    """A state directory with a site file and a store whose clock is ours."""

    state: Path

    def __post_init__(self) -> None:
        ducks = "".join(
            f'\n[[ducks]]\nmac = "{mac(i)}"\naddress = "10.21.1.{100 + i}"\nname = "{name(i)}"\nrack = "A{i}"\n'
            for i in range(1, NUM_DUCKS + 1)
        )
        self.site_path = self.state / "pond.toml"
        self.site_path.write_text(SITE + ducks)
        self.now_s = time.time() - 3600.0

    @property
    def context(self) -> FleetContext:
        return FleetContext(self.state, self.site_path)

    @property
    def site(self) -> Site:
        return self.context.site

    def store(self) -> Store:
        store = Store(f"sqlite:///{self.state / 'fleet.db'}", actor="nurse/1", clock=lambda: self.now_s)
        store.know(self.site.ducks)
        return store

    def fill(self, num_days: int = 14, *, sick: bool = True) -> None:
        """A probe a day until now; the sick duck lost a module on the last, another reads slower and slower."""
        store, end_s = self.store(), self.now_s
        for day in range(num_days):
            self.now_s = end_s - 86_400.0 * (num_days - 1 - day)
            last = day == num_days - 1
            for i in range(1, NUM_DUCKS + 1):
                self.probe(
                    store,
                    i,
                    healthy(i) if not (sick and last and i == SICK) else one_module(healthy(i)),
                    (22.0 + 0.15 * i + 0.1 * ((day * i) % 3)) * 1e9 * (0.5 if sick and last and i == SICK else 1),
                )
        store.close()

    def probe(self, store: Store, i: int, values: dict[str, Any], read_bytes_per_s: float) -> None:
        duck = self.site.ducks[i - 1]
        for event in ("answered", "probe_started"):
            if lifecycle.is_listed(store.ducks()[duck.mac].state, event):
                store.transition(duck, event, {}, lifecycle.next_state)
        measured = {"read_bandwidth": (read_bytes_per_s, "B/s"), "ram": (float(values["memory"]["total_bytes"]), "B")}
        store.add_probe_run(mac(i), self.now_s, "ok", values, measured=measured)
        halved = values["memory"]["total_bytes"] < 20_000_000 * 1024
        event, evidence = (
            ("probe_degraded", {"reasons": ["has 15.5 GiB of RAM, 32 expected"]}) if halved else ("probe_passed", {})
        )
        store.transition(duck, event, evidence, lifecycle.next_state)

    def hold(self, i: int, reason: str) -> None:
        store = self.store()
        store.add_hold(mac(i), "human", reason)
        store.transition(self.site.ducks[i - 1], "quarantined", {"reason": reason}, lifecycle.next_state)
        store.close()
