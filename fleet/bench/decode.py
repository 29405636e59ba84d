"""`duckctl bench decode`: tokens a second of a real model on a lab of process ducks, and where the time goes.

The ducks are started, woken, probed and given the weights as in any other fleet; the decoder runs in this process
without the HTTP server, so that nothing but decoding is measured. Beside the rate stands what the ducks' kernels would
allow alone: their median compute time of a forward, as they measured it themselves in the same run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from duckfleet.fleet import compose
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.demo_report import compute_p50_us_of
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.musters import load_current
from duckfleet.fleet.placement import PlacementRequest, place_model
from duckfleet.fleet.probing import probe_all
from duckfleet.fleet.reach import connect
from duckfleet.fleet.trust import make_keys
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.control import duckd_path

LOWER = ", lower is better"


def rows(
    model: str = "smollm2-135m", ducks: int = 2, duck_threads: int = 1, tokens: int = 64, format: str = "e4m3"
) -> Iterator[Mapping[str, Any]]:
    """Row `smollm2/ducks2x1` (tok/s), and its split a token in microseconds."""
    kept = FleetContext.of(None, None).state_dir / "demo"  # models and chunks are the demo's: fetched and cut once
    compose.pull_model(kept / "models", model, None)
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-") as folder:
        fleet = FleetContext(Path(folder))
        make_keys(fleet.keys_dir)
        fleet.models_dir.symlink_to(kept / "models")
        (kept / "chunks").mkdir(exist_ok=True)
        fleet.chunks_dir.symlink_to(kept / "chunks")
        try:
            place_on_lab(fleet, model, ducks, duck_threads, format)
            yield from _measure(fleet, f"{model.partition('-')[0]}/ducks{ducks}x{duck_threads}", tokens)
        finally:
            processes.lab_down(fleet.lab_dir)


def place_on_lab(fleet: FleetContext, model: str, num_ducks: int, num_threads: int, format: str) -> None:
    """Start a lab of process ducks and give them the model, as `duckctl lab up`, `wake`, `probe`, `place` do."""
    plan = processes.find_free_ports(plan_lab(processes.new_lab_id(), num_ducks))
    options = processes.DaemonOptions(
        duckd_path(),
        num_threads,
        fleet_key=fleet.keys_dir / "fleet.pub",
        enrolment=fleet.keys_dir / "enrolment.secret",
    )
    processes.lab_up(fleet.lab_dir, plan, options)
    Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True)
    probe_all(fleet.site, fleet.store, fleet.keys, fleet.site.ducks)

    def prepare(tp: int, _room_bytes: Mapping[str, int]) -> compose.PreparedPlan:
        return compose.prepare(fleet.models_dir, fleet.chunks_dir, model, tp=tp, format=format)

    outcome = place_model(fleet, PlacementRequest(model, format), prepare)
    if not outcome.standing:
        raise MachineError("; ".join(result.error for result in outcome.results if result.error))


def _measure(fleet: FleetContext, name: str, num_tokens: int) -> Iterator[Mapping[str, Any]]:
    standing = load_current(fleet.rosters_dir, fleet.keys)
    with compose.bare_decoder(fleet, standing) as decode:
        decode(num_tokens)  # warm up
        began = time.perf_counter()
        split_us = decode(num_tokens)
        token_us = 1e6 * (time.perf_counter() - began) / num_tokens
    compute_us = []
    for duck in fleet.site.ducks:
        with connect(fleet.site, duck, fleet.keys) as client:
            compute_us.append(compute_p50_us_of(client.stats()))
    yield {"name": name, "value": 1e6 / token_us, "unit": "tok/s"}
    for part, us in split_us.items():
        yield {
            "name": f"{name}/{part}",
            "value": us / num_tokens,
            "unit": f"us a token{LOWER}",
            "ratio": us / num_tokens / token_us,
            "against": "a token, same run",
        }
    yield {"name": f"{name}/duck-compute-p50", "value": max(compute_us), "unit": f"us a forward{LOWER}"}
