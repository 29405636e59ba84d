"""`place --by-bandwidth` through the command line: a duck that was measured slow gets less to read, and serves it."""

from __future__ import annotations

import time

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.musters import load_current
from duckfleet.fleet.probe_facts import measured
from duckfleet.inventory.site import Duck
from tests.fleet.test_chain import Operator, ask, checkpoint, operator, tokens

__all__ = ["checkpoint", "operator"]  # fixtures
USUAL, SLOW = 16e9, 8e9


def measure(fleet: FleetContext, duck: Duck, bytes_per_s: float) -> None:
    """A probe of this duck in which its memory gave so much, and all else as it was probed just now."""
    store = fleet.known_store
    report = dict(store.latest_probes(outcome="ok")[duck.mac].report)
    rates = {
        **report["measured"],
        "read_bandwidth": {**report["measured"]["read_bandwidth"], "bytes_per_s": bytes_per_s},
    }
    report["measured"] = rates
    store.add_probe_run(duck.mac, time.time(), "ok", report, measured=measured(report))


def test_a_slow_duck_gets_a_smaller_slice(operator: Operator) -> None:
    operator.ok("lab", "up", "--ducks", "3")
    operator.ok("wake", "--wait")
    operator.ok("probe")
    fleet = FleetContext(operator.state)
    for duck, rate in zip(fleet.site.ducks, (USUAL, SLOW, USUAL), strict=True):
        measure(fleet, duck, rate)
    by_bandwidth = ("place", "tiny", "--by-bandwidth", "--replicas", "0")
    placed = operator.json(*by_bandwidth)
    assert placed["standing"]
    held = [duck["total_bytes"] for duck in placed["ducks"]]
    unit_bytes = abs(held[0] - held[2])  # seven units of 16 columns a layer do not go into 2 : 1 : 2
    assert held[1] + 2 * unit_bytes < min(held[0], held[2]), held
    assert 0.3 < held[1] / held[0] < 0.7, held  # half as fast

    # Ducks that read a little faster or slower the next time keep what they have.
    for duck, rate in zip(fleet.site.ducks, (1.02 * USUAL, SLOW, 0.98 * USUAL), strict=True):
        measure(fleet, duck, rate)
    again = operator.json(*by_bandwidth)
    assert [duck["moved_bytes"] for duck in again["ducks"]] == [0, 0, 0]

    entries = load_current(fleet.rosters_dir, fleet.keys).roster.entries
    assert [entry.duck for entry in entries] == [duck.name for duck in fleet.site.ducks]
    with operator.server() as server:
        assert len(tokens(ask(server))) == 12

    # Alike again: the slow duck's slice grows.
    alike = operator.json("place", "tiny", "--replicas", "0")
    shares = [duck["total_bytes"] for duck in alike["ducks"]]
    assert shares[1] > held[1] and max(shares) - min(shares) < max(held) - min(held), shares
