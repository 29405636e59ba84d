"""What follows from a probe: healthy, degraded, or quarantine. Automation lifts only the holds that it placed itself.

A finding that is critical (the duck cannot serve, or would compute wrongly) places a hold. The hold is lifted when the
finding is gone and every source that it rested on has been read again: a test that was not run clears nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duckfleet.fleet import lifecycle
from duckfleet.fleet.diagnosing import looks_at
from duckfleet.fleet.diagnosis import Diagnosis, Finding, Look, Severity, diagnose
from duckfleet.fleet.diagnosis.causes import CAUSES
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Hold, Store
from duckfleet.inventory.store.records import Event

AUTOMATIC = "automatic"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """`healthy`, `degraded` or `quarantined`, and the findings that say so."""

    verdict: str
    reasons: tuple[str, ...]


def conclude(
    site: Site, store: Store, ducks: Sequence[Duck], shortcomings: Mapping[str, tuple[str, ...]]
) -> list[Conclusion]:
    """Diagnose ducks that were just probed and write what follows; `shortcomings` are by MAC, from the site file."""
    looks = looks_at(site, store, ducks)
    return [_conclude(store, duck, looks[duck.mac], shortcomings.get(duck.mac, ())) for duck in ducks]


def _conclude(store: Store, duck: Duck, look: Look, shortcomings: tuple[str, ...]) -> Conclusion:
    diagnosis = diagnose(look)
    severe = [finding for finding in diagnosis.findings if is_severe(finding)]
    mine = [hold for hold in store.holds() if hold.mac == duck.mac and hold.kind == AUTOMATIC]
    resting_on = _resting_on(store.events([duck.mac])) if mine else {}
    lifted = tuple(hold for hold in mine if is_over(resting_on.get(hold.id, {}), diagnosis, look))
    if lifted:
        store.lift_holds(duck.mac, AUTOMATIC, ids=[hold.id for hold in lifted])
        store.log("hold_lifted", {"holds": [hold.reason for hold in lifted], "kind": AUTOMATIC}, duck)
    held = {str(resting_on.get(hold.id, {}).get("finding", "")) for hold in mine if hold not in lifted}
    for finding in severe:
        if finding.code not in held:
            _place(store, duck, finding)
    return _settle(store, duck, diagnosis, shortcomings)


def is_severe(finding: Finding) -> bool:
    return finding.severity >= Severity.CRITICAL and not finding.is_for_want_of_evidence


def _place(store: Store, duck: Duck, finding: Finding) -> None:
    reason = describe(finding)
    hold_id = store.add_hold(duck.mac, AUTOMATIC, reason)
    evidence = {
        "kind": AUTOMATIC,
        "hold": hold_id,
        "finding": finding.code,
        "reason": reason,
        "sources": sorted({evidence.source for evidence in finding.evidence}),
    }
    store.transition(duck, "quarantined", evidence, lifecycle.next_state)


def _resting_on(events: Sequence[Event]) -> dict[int, Mapping[str, Any]]:
    """Hold -> the evidence with which automation placed it."""
    return {
        int(event.evidence["hold"]): event.evidence
        for event in events
        if event.kind == "quarantined" and event.evidence.get("kind") == AUTOMATIC and "hold" in event.evidence
    }


def is_over(placed: Mapping[str, Any], diagnosis: Diagnosis, look: Look) -> bool:
    """Whether what the hold was placed for is gone, and was looked for."""
    if any(finding.code == placed.get("finding") for finding in diagnosis.findings):
        return False
    sources = placed.get("sources")
    read = {observed.source for observed in look.observations() if observed.value is not None}
    return isinstance(sources, list) and all(source in read for source in sources)


def _settle(store: Store, duck: Duck, diagnosis: Diagnosis, shortcomings: tuple[str, ...]) -> Conclusion:
    """Take the duck to the state that holds and findings ask for."""
    state = store.ducks()[duck.mac].state
    holds: list[Hold] = [hold for hold in store.holds() if hold.mac == duck.mac]
    automatic = tuple(hold.reason for hold in holds if hold.kind == AUTOMATIC)
    if state == "quarantined" and not holds:
        for event in ("released", "answered", "probe_started"):
            evidence = {"by": AUTOMATIC} if event == "released" else {"address": duck.address}
            store.transition(duck, event, evidence, lifecycle.next_state)
        state = "probing"
    bad = [finding for finding in diagnosis.findings if finding.severity >= Severity.DEGRADED]
    reasons = shortcomings + tuple(describe(one) for one in bad if not one.is_for_want_of_evidence)
    codes = [finding.code for finding in diagnosis.findings]
    if state == "probing":
        event = "probe_degraded" if reasons else "probe_passed"
        store.transition(duck, event, {"reasons": list(reasons), "findings": codes}, lifecycle.next_state)
    if automatic:
        return Conclusion("quarantined", automatic)
    return Conclusion("degraded" if reasons else "healthy", reasons)


def describe(finding: Finding) -> str:
    """A line: what is wrong, and what it most likely is."""
    return f"{finding.title} ({CAUSES[finding.top.code].text})"
