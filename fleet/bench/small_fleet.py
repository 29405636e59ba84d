"""A lab of process ducks with a model placed, as benchmarks of the whole chain want it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from duckfleet.fleet import compose
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.placement import PlacementRequest, place_model
from duckfleet.fleet.probing import probe_all
from duckfleet.fleet.trust import make_keys
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.control import duckd_path


def kept_folder() -> Path:
    """Where models and chunks are kept from run to run, fetched and cut once: the demo's."""
    return FleetContext.of(None, None).state_dir / "demo"


@contextlib.contextmanager
def fleet_with(model: str, num_ducks: int, num_threads: int, format: str) -> Iterator[FleetContext]:
    """Ducks started, woken, probed and given the weights as in any other fleet; gone afterwards."""
    kept = kept_folder()
    compose.pull_model(kept / "models", model, None)
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-") as folder:
        fleet = FleetContext(Path(folder))
        make_keys(fleet.keys_dir)
        fleet.models_dir.symlink_to(kept / "models")
        (kept / "chunks").mkdir(exist_ok=True)
        fleet.chunks_dir.symlink_to(kept / "chunks")
        try:
            _place_on_lab(fleet, model, num_ducks, num_threads, format)
            yield fleet
        finally:
            processes.lab_down(fleet.lab_dir)


def _place_on_lab(fleet: FleetContext, model: str, num_ducks: int, num_threads: int, format: str) -> None:
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

    def prepare(_shares: Sequence[float] | None, tp: int, _room_bytes: Mapping[str, int]) -> compose.PreparedPlan:
        return compose.prepare(fleet.models_dir, fleet.chunks_dir, model, tp=tp, format=format)

    outcome = place_model(fleet, PlacementRequest(model, format), prepare)
    if not outcome.standing:
        raise MachineError("; ".join(result.error for result in outcome.results if result.error))
