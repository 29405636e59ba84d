"""Run a playbook on ducks or on the host: who takes part, what it is told, what is kept of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duckfleet.fleet import lifecycle
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab.ownership import boot_id
from duckfleet.fleet.playbooks import archive
from duckfleet.fleet.playbooks.archive import MachineResult, RunRecord
from duckfleet.fleet.playbooks.catalogue import Playbook, Value
from duckfleet.fleet.playbooks.events import STARTED, Tally, TaskEvent, tally, task_event
from duckfleet.fleet.playbooks.inventory import HOST_NAME, Inventory, by_host_name, literal
from duckfleet.fleet.playbooks.runner import Finished, Request, play, require_programs
from duckfleet.fleet.playbooks.variables import variables_of
from duckfleet.fleet.playbooks.verdicts import FIRMWARE, REFUSED, Verdict, judge
from duckfleet.fleet.reach import on_all, told_host_key
from duckfleet.fleet.shell import KNOWN_HOSTS, pin
from duckfleet.fleet.switching import is_own_address
from duckfleet.fleet.trust import SSH_KEY_FILE
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.site import Duck, Site

THIS_HOST = "this host"


@dataclass(frozen=True)
class PlaybookRun:
    """One playbook, on these ducks or, without any, on the host."""

    playbook: Playbook
    ducks: tuple[Duck, ...]
    values: dict[str, Value]
    is_check: bool = False
    is_ours: Callable[[str], bool] = is_own_address


def runs_dir(fleet: FleetContext) -> Path:
    return fleet.state_dir / "playbooks"


def choose(playbook: Playbook, site: Site, wanted: Sequence[str]) -> tuple[Duck, ...]:
    """The ducks that are meant. Raises `OperatorError` for ducks named to a playbook that is for the host."""
    if playbook.is_for_host:
        if wanted:
            what = f"playbook {playbook.name} sets up this host and takes no ducks"
            raise OperatorError(f"{what}: leave {wanted[0]!r} out")
        return ()
    chosen = site.select(wanted)
    if not chosen:
        raise OperatorError(f"{site.path} has no ducks yet: `duckctl discover` proposes them")
    return chosen


def whole_inventory(fleet: FleetContext, is_ours: Callable[[str], bool] = is_own_address) -> Inventory:
    """Of the whole site, for an Ansible that is not started by us."""
    there = tuple(duck for duck in fleet.site.ducks if not is_ours(duck.address))
    return Inventory(fleet.site, there, fleet.keys_dir, boot_id(), _interpreter())


def run_playbook(fleet: FleetContext, run: PlaybookRun, say: Callable[[TaskEvent], None]) -> RunRecord:
    """Run it, keep it, and say what came of it; `say` hears of every task as it begins and ends.

    Raises `OperatorError` where nothing could be started, and `MachineError` where Ansible ended without having done
    anything on any machine.
    """
    store = fleet.known_store
    refused = [duck for duck in run.ducks if run.is_ours(duck.address)]
    taking_part = tuple(duck for duck in run.ducks if duck not in refused)
    machines: dict[str, Duck | None] = dict(by_host_name(taking_part))
    if run.playbook.is_for_host:
        machines = {HOST_NAME: None}
        if os.geteuid() != 0:
            raise OperatorError(f"playbook {run.playbook.name} sets up this host, which takes root")
    require_programs(needs_ssh=bool(taking_part))
    _pin_told_keys(fleet, taking_part)
    started_at_s = time.time()
    folder = archive.new_run(runs_dir(fleet), run.playbook.name, started_at_s)
    begun = RunRecord(
        folder.name, run.playbook.name, run.is_check, run.values, started_at_s, started_at_s, archive.UNFINISHED, (), 0
    )
    archive.save(runs_dir(fleet), begun)  # whoever kills us, the run is listed and its tasks can be read
    about = {"playbook": run.playbook.name, "run": folder.name}
    store.log("playbook_started", {**about, "machines": len(machines)})
    events: list[TaskEvent] = []
    finished = Finished(0, False, "")
    if machines:
        finished = play(_request(fleet, run, folder, taking_part), _hear(machines, events, say))
    if machines and not events and finished.return_code and not finished.was_interrupted:
        store.log("playbook_finished", {**about, "outcome": "failed"})
        ended = replace(begun, finished_at_s=time.time(), outcome="failed", return_code=finished.return_code)
        archive.save(runs_dir(fleet), ended)
        raise MachineError(
            f"Ansible did nothing, exit code {finished.return_code}:\n{finished.last_words}\nkept in {folder}"
        )
    results = [_result(duck, Tally(duck.name), _refusal(duck)) for duck in refused]
    for host, counted in tally(machines, events).items():
        results.append(_judged(fleet, run, about, machines[host], counted, finished))
    outcome = "interrupted" if finished.was_interrupted else "ok" if all(one.is_well for one in results) else "failed"
    record = replace(
        begun,
        finished_at_s=time.time(),
        outcome=outcome,
        results=tuple(results),
        return_code=finished.return_code,
    )
    archive.save(runs_dir(fleet), record)
    counts = {"well": sum(one.is_well for one in results), "of": len(results)}
    store.log("playbook_finished", {**about, "outcome": outcome, **counts})
    return record


def read_events(fleet: FleetContext, record: RunRecord) -> list[TaskEvent]:
    """The tasks of a kept run as they ended."""
    found = [event for raw in archive.raw_events(runs_dir(fleet), record) if (event := task_event(raw)) is not None]
    return [_by_our_name(event) for event in found if event.status != STARTED]


def _by_our_name(event: TaskEvent) -> TaskEvent:
    return replace(event, host=THIS_HOST) if event.host == HOST_NAME else event


def _request(fleet: FleetContext, run: PlaybookRun, folder: Path, ducks: tuple[Duck, ...]) -> Request:
    ours = boot_id()
    inventory = Inventory(fleet.site, ducks, fleet.keys_dir, ours, _interpreter(), has_host=run.playbook.is_for_host)
    variables = literal(variables_of(run.playbook, fleet, run.values, ours))
    return Request(folder, run.playbook.path, inventory.static(), variables, run.is_check)


def _interpreter() -> str:
    """For Ansible's modules on this host: the one beneath our virtual environment, which starts faster."""
    return str(Path(sys.executable).resolve())


def _hear(
    machines: dict[str, Duck | None], events: list[TaskEvent], say: Callable[[TaskEvent], None]
) -> Callable[..., None]:
    def hear(raw: dict[str, object]) -> None:
        event = task_event(raw)
        if event is not None and event.host in machines:
            events.append(event)
            say(_by_our_name(event))

    return hear


def _pin_told_keys(fleet: FleetContext, ducks: Sequence[Duck]) -> None:
    """A box booted from our image makes itself a new host key at each start: its daemon vouches for it."""
    if not ducks:
        return
    if not (fleet.keys_dir / SSH_KEY_FILE).exists():
        raise OperatorError(f"there is no ssh key in {fleet.keys_dir}: `duckctl init` makes the fleet's keys")
    known = fleet.keys_dir / KNOWN_HOSTS
    known.touch(mode=0o600, exist_ok=True)
    for duck, key in on_all(ducks, lambda duck: told_host_key(fleet.site, duck, fleet.keys)):
        if isinstance(key, str) and key:
            pin(known, duck.address, key)


def _earlier_firmware(fleet: FleetContext, duck: Duck | None) -> Mapping[str, Any]:
    """As the last inventory found it; empty: there was none."""
    events = fleet.store.events([duck.mac]) if duck else []
    return next((event.evidence for event in reversed(events) if event.kind == FIRMWARE), {})


def _refusal(duck: Duck) -> Verdict:
    words = f"{duck.address} is this host's own address: nothing meant for a duck may run here"
    return Verdict(REFUSED, words, False, "playbook_failed", {"error": words})


def _result(duck: Duck | None, counted: Tally, verdict: Verdict) -> MachineResult:
    name, mac = (duck.name, duck.mac) if duck else (THIS_HOST, "")
    counts = (counted.num_ok, counted.num_changed, counted.num_skipped)
    return MachineResult(name, mac, verdict.outcome, verdict.detail, verdict.is_well, *counts)


def _judged(
    fleet: FleetContext,
    run: PlaybookRun,
    about: Mapping[str, str],
    duck: Duck | None,
    counted: Tally,
    finished: Finished,
) -> MachineResult:
    """Judge one machine, and write the event log's line; one that was switched off is expected to be silent now."""
    verdict = judge(
        counted,
        _earlier_firmware(fleet, duck),
        was_interrupted=finished.was_interrupted,
        is_check=run.is_check,
        must_report=not run.playbook.configures,
    )
    evidence = {**about, **verdict.evidence}
    if duck is not None and verdict.event == "power_cut":
        fleet.store.transition(duck, "power_cut", evidence, lifecycle.next_state)
    elif not run.is_check:
        fleet.store.log(verdict.event, evidence, duck)
    return _result(duck, counted, verdict)
