"""Probe ducks and keep what they say: a probe that could not run concludes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duckfleet.fleet import lifecycle
from duckfleet.fleet.reach import connect, on_all
from duckfleet.inventory.codec import to_plain
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Expectations, Site
from duckfleet.inventory.store import Store
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.wire import FleetKeys, WireFormatError

RAM_TOLERANCE = 0.93
"""Firmware and graphics take part of the RAM: a duck with less than this share of the stated amount lacks a module."""
PROBES_AT_ONCE = 8
"""A probe keeps its duck's cores and memory busy; ducks of a process lab share theirs with each other and with us."""


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What placement and the roster need of a probe report. 0: the duck did not say."""

    ram_bytes: int
    num_threads: int
    read_bandwidth_bytes_per_s: float
    cpu: str
    kernels: str
    duckd_version: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A duck after its probe. Verdicts: `healthy`, `degraded` (and why), `unknown` (it could not run, and why)."""

    duck: Duck
    verdict: str
    reasons: tuple[str, ...]
    facts: ProbeFacts | None
    took_s: float
    silent: bool = False  # nothing answered: the duck sleeps, or worse


def probe_all(
    site: Site,
    store: Store,
    keys: FleetKeys | None,
    ducks: Sequence[Duck],
    report: Callable[[ProbeResult], None] = lambda _result: None,
) -> list[ProbeResult]:
    """Probe the ducks; results in the order of `ducks`, reported as they come."""
    states = {mac: row.state for mac, row in store.ducks().items()}
    results: dict[str, ProbeResult] = {}
    for duck, result in on_all(
        ducks, lambda duck: probe_one(site, store, keys, duck, states[duck.mac]), at_once=PROBES_AT_ONCE
    ):
        if isinstance(result, MachineError):
            result = ProbeResult(duck, "unknown", (str(result),), None, 0.0)
        results[duck.mac] = result
        report(result)
    return [results[duck.mac] for duck in ducks]


def probe_one(site: Site, store: Store, keys: FleetKeys | None, duck: Duck, state: str) -> ProbeResult:
    """Probe one duck and write the run, its measurements and the verdict."""
    began, began_at_s = time.monotonic(), time.time()
    if state == "serving":
        return ProbeResult(duck, "unknown", ("is serving; a probe would slow it down",), None, 0.0)
    quarantined = state == "quarantined"
    started = False
    try:
        with connect(site, duck, keys) as client:
            if not quarantined:
                _take(store, duck, "answered", {"address": duck.address}, only_if_changing=True)
                _take(store, duck, "probe_started", {"address": duck.address})
                started = True
            report = {**client.probe(), "identity": to_plain(client.identity())}
    except (MachineError, WireFormatError) as error:
        store.add_probe_run(duck.mac, began_at_s, "unknown", {}, error=str(error))
        event = "probe_unknown" if started else "went_silent"
        # A duck that refuses (other keys, another version) is there: only silence makes it lost.
        if started or (isinstance(error, DuckLost) and lifecycle.is_listed(state, event)):
            _take(store, duck, event, {"error": str(error)})
        silent = isinstance(error, DuckLost)
        return ProbeResult(duck, "unknown", (str(error),), None, time.monotonic() - began, silent)
    facts = facts_of(report)
    reasons = shortcomings(duck.expect, facts)
    store.add_probe_run(duck.mac, began_at_s, "ok", report, measured=measured(facts))
    verdict = "degraded" if reasons else "healthy"
    if started:
        event = "probe_degraded" if reasons else "probe_passed"
        _take(store, duck, event, {"reasons": list(reasons), **measured_plain(facts)})
    return ProbeResult(duck, verdict, reasons, facts, time.monotonic() - began)


def _take(store: Store, duck: Duck, event: str, evidence: Mapping[str, Any], *, only_if_changing: bool = False) -> None:
    if only_if_changing:
        state = store.ducks()[duck.mac].state
        if lifecycle.next_state(state, event) == state:
            return
    store.transition(duck, event, evidence, lifecycle.next_state)


def facts_of(report: Mapping[str, Any]) -> ProbeFacts:
    """Pick the facts out of duckd's report and identity; anything absent or of a wrong type is 0 or empty."""
    memory = _table(report, "memory")
    cpu = _table(report, "cpu")
    identity = _table(report, "identity")
    bandwidth = _table(_table(report, "measured"), "read_bandwidth")
    return ProbeFacts(
        ram_bytes=int(_number(memory, "total_bytes")),
        num_threads=int(_number(identity, "num_threads")),
        read_bandwidth_bytes_per_s=_number(bandwidth, "bytes_per_s"),
        cpu=_text(cpu, "model"),
        kernels=_text(identity, "kernels"),
        duckd_version=_text(identity, "duckd_version"),
    )


def shortcomings(expect: Expectations, facts: ProbeFacts) -> tuple[str, ...]:
    """Where a duck has less than the site file expects; what it did not say is not held against it."""
    found = []
    if expect.ram_bytes is not None and facts.ram_bytes and facts.ram_bytes < RAM_TOLERANCE * expect.ram_bytes:
        found.append(f"has {facts.ram_bytes / 2**30:.1f} GiB of RAM, {expect.ram_bytes / 2**30:g} expected")
    if expect.cpu is not None and facts.cpu and expect.cpu.lower() not in facts.cpu.lower():
        found.append(f"has a {facts.cpu}, {expect.cpu} expected")
    return tuple(found)


def measured(facts: ProbeFacts) -> dict[str, tuple[float, str]]:
    """The numbers worth keeping over time: name -> (value, unit)."""
    numbers = {}
    if facts.read_bandwidth_bytes_per_s:
        numbers["read_bandwidth"] = (facts.read_bandwidth_bytes_per_s, "B/s")
    if facts.ram_bytes:
        numbers["ram"] = (float(facts.ram_bytes), "B")
    return numbers


def measured_plain(facts: ProbeFacts) -> dict[str, float]:
    return {name: value for name, (value, _unit) in measured(facts).items()}


def _table(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _number(value: Mapping[str, Any], key: str) -> float:
    inner = value.get(key)
    return float(inner) if isinstance(inner, int | float) and not isinstance(inner, bool) else 0.0


def _text(value: Mapping[str, Any], key: str) -> str:
    inner = value.get(key)
    return inner if isinstance(inner, str) else ""
