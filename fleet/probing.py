"""Probe ducks and keep what they say: a probe that could not run concludes nothing.

Three steps: every duck is measured, several at a time; then, with the fleet's new baseline, each is diagnosed; what
comes of it is written (fleet/quarantine.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.fleet import lifecycle
from duckfleet.fleet.burst import BurstFailed, burst_test, host_counters, rises
from duckfleet.fleet.errors import DuckUnreachable
from duckfleet.fleet.probe_facts import RAM_TOLERANCE, ProbeFacts, facts_of, measured, shortcomings
from duckfleet.fleet.quarantine import conclude
from duckfleet.fleet.reach import connect, on_all, told_host_key
from duckfleet.fleet.ssh_texts import collect
from duckfleet.fleet.switching import is_own_address
from duckfleet.inventory.codec import to_plain
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Store
from duckfleet.runtime.control import MEASURE_TIMEOUT_S, ControlClient
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.wire import FleetKeys, WireFormatError

__all__ = ["RAM_TOLERANCE", "ProbeFacts", "ProbeOptions", "ProbeResult", "facts_of", "probe_all"]

PROBES_AT_ONCE = 8
"""A probe keeps its duck's cores and memory busy; ducks of a process lab share theirs with each other and with us."""
CONNECT_TIMEOUT_S = 5.0
SERVING = "is serving; a probe would slow it down"


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What is measured beyond what the duck just says. `seconds` of memory test and of sustained load each; 0: none."""

    seconds: int = 0
    num_echoes: int = 600  # of the burst test; 0: none
    ssh_dir: Path | None = None  # where the ssh key is: ask the box's own tools too
    at_once: int = PROBES_AT_ONCE
    timeout_s: float = MEASURE_TIMEOUT_S  # of what does not last `seconds`


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A duck after its probe.

    Verdicts: `healthy`, `degraded` and `quarantined` (and why), `unknown` (it could not run, and why).
    """

    duck: Duck
    verdict: str
    reasons: tuple[str, ...]
    facts: ProbeFacts | None
    took_s: float
    silent: bool = False  # nothing answered: the duck sleeps, or worse


@dataclass(frozen=True, slots=True)
class Taken:
    """A probe that ran, before anything is concluded from it."""

    duck: Duck
    report: Mapping[str, Any]
    took_s: float


def probe_all(
    site: Site,
    store: Store,
    keys: FleetKeys | None,
    ducks: Sequence[Duck],
    report: Callable[[Duck], None] = lambda _duck: None,
    options: ProbeOptions = ProbeOptions(),
) -> list[ProbeResult]:
    """Probe the ducks; results in the order of `ducks`. `report` is told of each that was measured, or failed."""
    states = {mac: row.state for mac, row in store.ducks().items()}
    results: dict[str, ProbeResult] = {}
    taken: list[Taken] = []
    for duck, result in on_all(
        ducks, lambda duck: _take_probe(site, store, keys, duck, states[duck.mac], options), at_once=options.at_once
    ):
        if isinstance(result, Taken):
            taken.append(result)
        elif isinstance(result, ProbeResult):
            results[duck.mac] = result
        else:
            results[duck.mac] = ProbeResult(duck, "unknown", (str(result),), None, 0.0)
        report(duck)
    conclusions = conclude(site, store, [one.duck for one in taken], _shortcomings(taken))
    for one, conclusion in zip(taken, conclusions, strict=True):
        facts = facts_of(one.report)
        results[one.duck.mac] = ProbeResult(one.duck, conclusion.verdict, conclusion.reasons, facts, one.took_s)
    return [results[duck.mac] for duck in ducks]


def _shortcomings(taken: Sequence[Taken]) -> dict[str, tuple[str, ...]]:
    return {one.duck.mac: shortcomings(one.duck.expect, facts_of(one.report)) for one in taken}


def _take_probe(
    site: Site, store: Store, keys: FleetKeys | None, duck: Duck, state: str, options: ProbeOptions
) -> Taken | ProbeResult:
    """Measure one duck and keep the run; the duck is then `probing`, or in quarantine as before."""
    began, began_at_s = time.monotonic(), time.time()
    if state == "serving":
        return ProbeResult(duck, "unknown", (SERVING,), None, 0.0)
    started = False
    texts, shell_error = _texts(duck, options, told_host_key(site, duck, keys) if options.ssh_dir else "")
    try:
        with connect(site, duck, keys, CONNECT_TIMEOUT_S) as client:
            if state != "quarantined":
                take(store, duck, "answered", {"address": duck.address}, only_if_changing=True)
                take(store, duck, "probe_started", {"address": duck.address})
                started = True
            report = _measure(site, duck, client, options)
    except (MachineError, WireFormatError) as error:
        said = {"error": str(error)} | ({"ssh": shell_error or "ok"} if options.ssh_dir else {})
        if texts:  # its daemon is silent, its tools are not
            store.add_probe_run(duck.mac, began_at_s, "ok", {"texts": texts})
        else:
            store.add_probe_run(duck.mac, began_at_s, "unknown", {}, error=str(error))
        event = "probe_unknown" if started else "went_silent"
        # A duck that refuses (other keys, another version) is there: only silence makes it lost.
        if started or (isinstance(error, DuckLost) and lifecycle.is_listed(state, event)):
            take(store, duck, event, said)
        silent = isinstance(error, DuckLost)
        return ProbeResult(duck, "unknown", (str(error),), None, time.monotonic() - began, silent)
    if texts:
        report["texts"] = texts
    store.add_probe_run(duck.mac, began_at_s, "ok", report, measured=measured(report))
    return Taken(duck, report, time.monotonic() - began)


def _texts(duck: Duck, options: ProbeOptions, host_key: str) -> tuple[dict[str, str], str]:
    """What the box's own tools say over ssh, and why not."""
    if options.ssh_dir is None:
        return {}, ""
    try:
        return collect(duck, options.ssh_dir, host_key=host_key), ""
    except DuckUnreachable as error:
        return {}, str(error)


def _measure(site: Site, duck: Duck, client: ControlClient, options: ProbeOptions) -> dict[str, Any]:
    """duckd's report with what is seen from here beside it: the burst test, and counters before and after it."""
    identity = to_plain(client.identity())
    # Ducks that are processes of this host would take all of its memory and cores, each of them.
    seconds = 0 if is_own_address(duck.address) else options.seconds
    if not options.num_echoes:
        report = client.probe(memory_s=seconds, sustained_s=seconds, measure_timeout_s=options.timeout_s)
        return {**report, "identity": identity}
    domain = site.domain(duck.domain)
    before = client.probe(measure=False)
    host_before = host_counters(domain.interface)
    failure, burst = "", {}
    try:
        burst = burst_test(
            (duck.address, domain.data_port),
            lambda: _echoes(client),
            num_echoes=options.num_echoes,
            mtu=domain.mtu,
        )
    except BurstFailed as error:
        failure = str(error)
    host_rises = rises(host_before, host_counters(domain.interface))
    report = client.probe(memory_s=seconds, sustained_s=seconds, measure_timeout_s=options.timeout_s)
    report = {**report, "identity": identity, "burst": burst}
    report["load"] = {"before": before.get("nics"), "after": report.get("nics"), "host": host_rises}
    if failure:
        unknown = report.get("unknown")
        report["unknown"] = [*(unknown if isinstance(unknown, list) else []), {"what": "burst", "reason": failure}]
    return report


def _echoes(client: ControlClient) -> tuple[int, int]:
    """Echo requests that the duck has heard since its start, and those it has answered."""
    data = client.stats().get("data")
    fields = data if isinstance(data, dict) else {}
    drops = fields.get("drops")
    limited = drops.get("rate_limited") if isinstance(drops, dict) else None
    answered = fields.get("echoes")
    if not isinstance(answered, int) or not isinstance(limited, int):
        raise BurstFailed("the duck does not count echoes")
    return answered + limited, answered


def take(store: Store, duck: Duck, event: str, evidence: Mapping[str, Any], *, only_if_changing: bool = False) -> None:
    if only_if_changing:
        state = store.ducks()[duck.mac].state
        if lifecycle.next_state(state, event) == state:
            return
    store.transition(duck, event, evidence, lifecycle.next_state)
