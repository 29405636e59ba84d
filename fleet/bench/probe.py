"""Bench of probing: how long 32 process ducks take, well and with some that hang, beside one duck alone."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.probing import ProbeOptions, probe_all
from duckfleet.fleet.trust import make_keys
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck
from duckfleet.runtime.control import duckd_path

UNIT = "s, lower is better"


def rows(ducks: int = 32, at_once: int = 8, hanging: int = 2) -> Iterator[Mapping[str, Any]]:
    """Rows `probe/one`, `probe/ducks32` and `probe/ducks32-hanging2` (s)."""
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-") as folder:
        fleet = FleetContext(Path(folder))
        make_keys(fleet.keys_dir)
        try:
            yield from _measure(_started(fleet, ducks), at_once, hanging)
        finally:
            processes.lab_down(fleet.lab_dir)


def _started(fleet: FleetContext, num_ducks: int) -> FleetContext:
    plan = processes.find_free_ports(plan_lab(processes.new_lab_id(), num_ducks))
    options = processes.DaemonOptions(
        duckd_path(), fleet_key=fleet.keys_dir / "fleet.pub", enrolment=fleet.keys_dir / "enrolment.secret"
    )
    processes.lab_up(fleet.lab_dir, plan, options)
    woken = Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True)
    if not all(result.ok for result in woken):
        raise MachineError("not every duck of the bench's lab came up")
    return fleet


def _measure(fleet: FleetContext, at_once: int, num_hanging: int) -> Iterator[Mapping[str, Any]]:
    ducks = fleet.site.ducks
    _probe_s(fleet, ducks[:1], at_once, 0)  # warm up
    one_s = _probe_s(fleet, ducks[:1], at_once, 0)
    yield {"name": "probe/one", "value": one_s, "unit": UNIT}
    all_s = _probe_s(fleet, ducks, at_once, 0)
    alone = {"ratio": all_s / (one_s * len(ducks)), "against": f"{len(ducks)} times one alone, same run"}
    yield {"name": f"probe/ducks{len(ducks)}", "value": all_s, "unit": UNIT, **alone}
    if 0 < num_hanging < len(ducks):
        sick_s = _probe_s(fleet, ducks, at_once, num_hanging)
        well = {"ratio": sick_s / all_s, "against": "none hanging, same run"}
        yield {"name": f"probe/ducks{len(ducks)}-hanging{num_hanging}", "value": sick_s, "unit": UNIT, **well}


def _probe_s(fleet: FleetContext, ducks: tuple[Duck, ...], at_once: int, num_hanging: int) -> float:
    """Seconds to probe these, the first of them standing still."""
    status = processes.lab_status(fleet.lab_dir)
    pids = {one.mac: one.pid for one in status.ducks} if status else {}
    stopped = [pid for duck in ducks[:num_hanging] if (pid := pids.get(duck.mac))]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        began = time.perf_counter()
        results = probe_all(fleet.site, fleet.known_store, fleet.keys, ducks, options=ProbeOptions(at_once=at_once))
        took_s = time.perf_counter() - began
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    failed = [result for result in results if result.verdict == "unknown"]
    if len(failed) != num_hanging:
        raise MachineError(f"{len(failed)} probes failed, not {num_hanging}: {failed[:1]}")
    return took_s
