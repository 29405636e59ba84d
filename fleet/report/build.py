"""From what was gathered to the page. Pure: no clock, store or files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from duckfleet.fleet.diagnosis import Diagnosis, Finding
from duckfleet.fleet.diagnosis import Evidence as Seen
from duckfleet.fleet.diagnosis.causes import CAUSES
from duckfleet.fleet.diagnosis.workorder import TITLES, Patient, jobs
from duckfleet.fleet.report.changes import compare
from duckfleet.fleet.report.page import (
    SEVERITIES,
    CauseLine,
    Cell,
    FindingItem,
    Page,
    Past,
    Undelivered,
    UnknownLine,
    Work,
)
from duckfleet.fleet.report.trends import trends_of
from duckfleet.fleet.rosters import Evidence, why_missing
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store.records import Event, Measurement

MAX_HISTORY = 120  # reports
MAX_CAUSES = 6


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything a page rests on."""

    site: Site
    at_s: float
    evidence: Mapping[str, Evidence]  # by MAC
    diagnoses: Mapping[str, Diagnosis]  # by MAC
    measured: Mapping[str, Mapping[str, Sequence[Measurement]]]  # measurement -> duck's name -> values
    events: Sequence[Event]  # since the last report
    previous: Page | None
    previous_error: str
    undelivered: Sequence[Undelivered]


def build_page(seen: Gathered) -> Page:
    """One report."""
    site, ducks = seen.site, seen.site.ducks
    cells = tuple(_cell(duck, seen) for domain in site.domains for duck in ducks if duck.domain == domain.name)
    patients = [Patient(duck.name, duck.address, duck.rack, seen.diagnoses[duck.mac]) for duck in ducks]
    findings = [_finding(duck, finding) for duck in ducks for finding in seen.diagnoses[duck.mac].findings]
    findings.sort(key=lambda item: SEVERITIES.index(item.severity))  # stable: of one severity, by address
    previous = seen.previous
    page = Page(
        fleet=site.name,
        at_s=seen.at_s,
        previous_at_s=previous.at_s if previous else 0.0,
        previous_error=seen.previous_error,
        cells=cells,
        findings=tuple(findings),
        work=_work(patients),
        unknown=_unknown(patients),
        trends=trends_of(seen.measured),
        changes=(),
        events=tuple((kind, str(count)) for kind, count in Counter(e.kind for e in seen.events).most_common()),
        undelivered=tuple(seen.undelivered),
        history=(),
    )
    past = Past(page.at_s, len(cells), page.num_ready, len(findings))
    history = (*(previous.history if previous else ()), past)[-MAX_HISTORY:]
    return replace(page, history=history, changes=compare(previous, page) if previous else ())


def _cell(duck: Duck, seen: Gathered) -> Cell:
    known = seen.evidence[duck.mac]
    findings = seen.diagnoses[duck.mac].findings
    reason = why_missing(known, seen.at_s)
    return Cell(
        duck.name,
        duck.mac,
        duck.address,
        duck.domain,
        duck.rack,
        known.row.state if known.row else "unknown",
        known.row.since_s if known.row else 0.0,
        known.probed_at_s,
        max(findings, key=lambda finding: finding.severity).severity.name.lower() if findings else "",
        reason is None,
        (reason or "").partition("; `")[0].partition(" (--")[0],  # the advice is a shell's
        tuple(f"{hold.reason} ({hold.kind}, by {hold.placed_by.partition('/')[0]})" for hold in known.holds),
    )


def _finding(duck: Duck, finding: Finding) -> FindingItem:
    arguments = [argument.evidence for argument in finding.arguments]
    evidence = dict.fromkeys(_seen(one) for one in (*finding.evidence, *arguments))
    return FindingItem(
        duck.name,
        duck.mac,
        duck.rack,
        finding.code,
        finding.title,
        finding.severity.name.lower(),
        tuple(evidence),
        tuple(CauseLine(cause.code, CAUSES[cause.code].text, cause.weight) for cause in finding.causes[:MAX_CAUSES]),
        len(finding.tied),
        finding.next_test.text,
        finding.next_test.cost_min,
    )


def _seen(evidence: Seen) -> str:
    at = f" ({evidence.at:%Y-%m-%d %H:%M:%S} UTC)" if evidence.at else ""
    return f"{evidence.source}{at}: {evidence.text}"


def _work(patients: Sequence[Patient]) -> tuple[Work, ...]:
    return tuple(
        Work(
            job.duck,
            job.address,
            job.rack,
            TITLES[job.place],
            job.severity.name.lower(),
            job.title,
            tuple(CAUSES[code].text for code in job.causes),
            job.first,
            job.then if job.then != job.first else "",
            job.parts,
        )
        for job in jobs(patients)
    )


def _unknown(patients: Sequence[Patient]) -> tuple[UnknownLine, ...]:
    """A source that is silent about many ducks for one reason is one line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for patient in patients:
        for unknown in patient.diagnosis.unknown:
            by_reason.setdefault((unknown.source, unknown.reason), []).append(patient.name)
    return tuple(UnknownLine(source, reason, tuple(names)) for (source, reason), names in sorted(by_reason.items()))
