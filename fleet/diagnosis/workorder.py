"""The walk-up list: which box to walk to, by rack position, with what in hand; then the switch, then the desk. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.causes import AT_THE_BOX, AT_THE_DESK, AT_THE_SWITCH, CAUSES
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, STARTING, Diagnosis, Finding, Severity

LIKELY = 0.2  # causes with this much of the belief are worth their part in the bag
TITLES = {
    AT_THE_BOX: "At the rack",
    AT_THE_SWITCH: "At the switch",
    AT_THE_DESK: "From the desk",
}


@dataclass(frozen=True, slots=True)
class Patient:
    """A duck, where it stands, and what is wrong with it."""

    name: str
    address: str
    rack: str
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to do at one duck."""

    duck: str
    address: str
    rack: str
    place: str
    severity: Severity
    title: str
    causes: tuple[str, ...]
    first: str  # the next test
    then: str  # the remedy of the likeliest cause
    parts: tuple[str, ...]


def jobs(patients: Sequence[Patient]) -> tuple[Job, ...]:
    """By place, then by rack position in the order of a walk, the worst first at each box."""
    found = [
        _job(patient, finding)
        for patient in patients
        for finding in patient.diagnosis.findings
        if finding.code != STARTING
    ]
    return tuple(sorted(found, key=_walk))


def _walk(job: Job) -> tuple[int, object, object, int]:
    return list(TITLES).index(job.place), natural(job.rack), natural(job.duck), -job.severity


def _job(patient: Patient, finding: Finding) -> Job:
    likely = [cause for cause in finding.causes if cause.weight >= LIKELY and cause.code != INSUFFICIENT]
    likely = likely or [cause for cause in finding.causes if cause.code != INSUFFICIENT][:1] or [finding.top]
    at_hand = [CAUSES[cause.code] for cause in likely]
    place = AT_THE_BOX if any(info.place == AT_THE_BOX for info in at_hand) else at_hand[0].place
    parts = dict.fromkeys(part.strip() for info in at_hand for part in info.part.split(",") if part.strip())
    return Job(
        patient.name,
        patient.address,
        patient.rack,
        place,
        finding.severity,
        finding.title,
        tuple(cause.code for cause in likely),
        finding.next_test.text,
        at_hand[0].remedy,
        tuple(parts),
    )


def workorder_text(patients: Sequence[Patient]) -> str:
    """A page to print; a line of what to bring at its top."""
    todo = jobs(patients)
    if not todo:
        return "nothing to do: no duck has a finding\n"
    walk = [job for job in todo if job.place == AT_THE_BOX]
    lines = []
    if walk:
        bag = Counter(part for job in walk for part in job.parts)
        lines.append("bring: " + (", ".join(f"{count} x {part}" for part, count in sorted(bag.items())) or "nothing"))
    for place, title in TITLES.items():
        here = [job for job in todo if job.place == place]
        if here:
            lines += ["", title]
        for job in here:
            lines += _job_lines(job)
    return "\n".join(lines).lstrip("\n") + "\n"


def _job_lines(job: Job) -> list[str]:
    soon = "" if job.severity >= Severity.DEGRADED else " (when somebody is there anyway)"
    lines = [f"  {job.rack or '-':<6} {job.duck} {job.address}: {job.title}{soon}"]
    lines.append(f"         likely: {', '.join(CAUSES[code].text for code in job.causes)}")
    lines.append(f"         first:  {job.first}")
    if job.then != job.first:
        lines.append(f"         then:   {job.then}")
    if job.parts:
        lines.append(f"         bring:  {', '.join(job.parts)}")
    return lines


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A2 before A10."""
    parts = re.findall(r"[0-9]{1,9}|[^0-9]+", text)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)
