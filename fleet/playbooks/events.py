"""What ansible-runner's events say: one task on one machine each, and what they add up to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from duckfleet.fleet.playbooks.failures import explain

OK, CHANGED, SKIPPED, FAILED, IGNORED, UNREACHABLE = "ok", "changed", "skipped", "failed", "ignored", "unreachable"
STARTED = "started"
REPORT_FACT = "duckfleet_report"
"""A role says by this fact what is more than ok or failed: a mapping with `kind`."""
NOTE_FACT = "duckfleet_note"
"""And by this one, in words, what it could not do on this machine."""


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """A task began or ended on one machine."""

    host: str  # as Ansible calls it
    task: str
    status: str  # STARTED, or one of the six above
    detail: str = ""  # of a failure: what went wrong and what to do
    report: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


_STATUS = {
    "runner_on_start": STARTED,
    "runner_on_ok": OK,
    "runner_on_failed": FAILED,
    "runner_on_skipped": SKIPPED,
    "runner_on_unreachable": UNREACHABLE,
}


def task_event(event: Mapping[str, Any]) -> TaskEvent | None:
    """None for events that are about no machine."""
    data = event.get("event_data")
    status = _STATUS.get(str(event.get("event")))
    if status is None or not isinstance(data, Mapping) or not data.get("host"):
        return None
    result = data.get("res") if isinstance(data.get("res"), Mapping) else {}
    assert isinstance(result, Mapping)
    task = str(data.get("task") or "").strip()
    if status == OK and result.get("changed") is True:
        status = CHANGED
    if status == FAILED and data.get("ignore_errors"):
        status = IGNORED
    detail = explain(result, task) if status in (FAILED, UNREACHABLE) else ""
    facts = result.get("ansible_facts") if status == OK else None
    facts = facts if isinstance(facts, Mapping) else {}
    report = facts.get(REPORT_FACT)
    return TaskEvent(
        str(data["host"]),
        task,
        status,
        detail,
        report if isinstance(report, Mapping) else {},
        str(facts.get(NOTE_FACT) or ""),
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """What a playbook did on one machine."""

    host: str
    num_ok: int = 0  # tasks, those that changed something included
    num_changed: int = 0
    num_skipped: int = 0
    failed_task: str = ""
    failure: str = ""
    is_unreachable: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def after(self, event: TaskEvent) -> Tally:
        if event.status == SKIPPED:
            return replace(self, num_skipped=self.num_skipped + 1)
        if event.status in (FAILED, UNREACHABLE):
            return replace(
                self,
                failed_task=event.task,
                failure=event.detail,
                is_unreachable=event.status == UNREACHABLE,
            )
        if event.status not in (OK, CHANGED):
            return self
        return replace(
            self,
            num_ok=self.num_ok + 1,
            num_changed=self.num_changed + (event.status == CHANGED),
            report=event.report or self.report,
            notes=(*self.notes, event.note) if event.note else self.notes,
        )


def tally(hosts: Iterable[str], events: Iterable[TaskEvent]) -> dict[str, Tally]:
    """By machine; one that nothing was told about has done nothing."""
    found = {host: Tally(host) for host in hosts}
    for event in events:
        if event.host in found:
            found[event.host] = found[event.host].after(event)
    return found
