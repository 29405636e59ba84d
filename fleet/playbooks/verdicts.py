"""What a playbook's run means for one machine: an outcome, words for a person, and what the event log keeps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from duckfleet.fleet.playbooks import burn_in, firmware
from duckfleet.fleet.playbooks.events import Tally

OK, CHANGED, FAILED, UNREACHABLE, UNSUPPORTED = "ok", "changed", "failed", "unreachable", "unsupported"
NOT_RUN, REFUSED, UNKNOWN, INTERRUPTED = "not run", "refused", "unknown", "interrupted"
BURN_IN, FIRMWARE = "burn_in", "firmware"  # kinds of reports, and of lines in the event log


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one machine. `event` is the kind of the line in the event log, `evidence` what stands in it."""

    outcome: str  # one of those above, or a result of a burn-in
    detail: str
    is_well: bool
    event: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def judge(
    tally: Tally,
    earlier: Mapping[str, Any],
    *,
    was_interrupted: bool = False,
    is_check: bool = False,
    must_report: bool = False,
) -> Verdict:
    """From what its tasks did and what its roles reported; `earlier`: the firmware at the inventory before.

    `must_report`: the result is what a role reports, and tasks that ended well are none without it.
    """
    kind = str(tally.report.get("kind") or "")
    if tally.failure or tally.is_unreachable:
        outcome = UNREACHABLE if tally.is_unreachable else FAILED
        evidence = {"task": tally.failed_task, "error": tally.failure}
        return Verdict(outcome, tally.failure, False, "playbook_failed", evidence)
    if was_interrupted and not tally.report:
        words = f"after {tally.num_ok} tasks"
        return Verdict(INTERRUPTED, words, False, "playbook_failed", {"error": f"interrupted {words}"})
    if not tally.num_ok and not tally.num_skipped:
        return Verdict(NOT_RUN, "no task was run on it", False, "playbook_failed", {"error": "no task was run"})
    if kind in _JUDGES and not is_check:
        return _JUDGES[kind](tally, earlier)
    if must_report and not is_check:
        words = "its tasks ended, but what they found did not arrive: `duckctl playbook log last` shows them"
        return Verdict(UNKNOWN, words, False, "playbook_failed", {"error": words})
    outcome = CHANGED if tally.num_changed else OK
    what = "would be changed" if is_check else "changed"
    detail = f"{tally.num_changed} {what}" if tally.num_changed else "nothing to change"
    notes = "; ".join(tally.notes)
    return Verdict(
        outcome,
        f"{detail}; {notes}" if notes else detail,
        True,
        "playbook_passed",
        {"changed": tally.num_changed, **({"notes": notes} if notes else {})},
    )


def _burn_in(tally: Tally, _earlier: Mapping[str, Any]) -> Verdict:
    report = tally.report
    found = burn_in.read(str(report.get("output") or ""), _number(report.get("return_code")))
    evidence = {
        "result": found.result,
        "detail": found.detail,
        "seconds": _number(report.get("seconds")),
        "mib": _number(report.get("mib")),
        **({"incidents": found.incidents, "lines": list(found.lines)} if found.result == burn_in.ERRORS else {}),
    }
    detail = f"{found.detail} in {evidence['seconds']} s over {evidence['mib']} MiB"
    if found.result == burn_in.PROCEDURE:
        detail = found.detail
    elif found.result == burn_in.ERRORS:
        detail += "; `duckctl explain` says what to bring"
    return Verdict(found.result, detail, found.result == burn_in.PASSED, BURN_IN, evidence)


def _firmware(tally: Tally, earlier: Mapping[str, Any]) -> Verdict:
    texts = tally.report.get("texts")
    found = firmware.read(texts if isinstance(texts, Mapping) else {})
    changed = firmware.changes(earlier, found)
    is_read = "bios_version" in found
    outcome = (CHANGED if changed else OK) if is_read else UNKNOWN
    detail = "; ".join((*changed, firmware.summary(found)))
    return Verdict(outcome, detail, is_read, FIRMWARE, found)


def _unsupported(tally: Tally, _earlier: Mapping[str, Any]) -> Verdict:
    reason = str(tally.report.get("reason") or "")
    return Verdict(UNSUPPORTED, f"not supported here: {reason}", False, "playbook_failed", {"unsupported": reason})


def _power_limits(tally: Tally, _earlier: Mapping[str, Any]) -> Verdict:
    limits = str(tally.report.get("limits") or "")
    outcome = CHANGED if tally.num_changed else OK
    return Verdict(outcome, limits, True, "power_limits", {"limits": limits, "changed": tally.num_changed})


def _shutdown(_tally: Tally, _earlier: Mapping[str, Any]) -> Verdict:
    return Verdict(CHANGED, "told to power off", True, "power_cut", {"by": "playbook"})


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1


_JUDGES: Mapping[str, Callable[[Tally, Mapping[str, Any]], Verdict]] = {
    BURN_IN: _burn_in,
    FIRMWARE: _firmware,
    "unsupported": _unsupported,
    "power_limits": _power_limits,
    "shutdown": _shutdown,
}
