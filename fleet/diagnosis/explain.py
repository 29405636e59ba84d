"""The reasoning of a diagnosis as text: what was seen, what that makes of each cause, what to do next. Pure."""

from __future__ import annotations

from datetime import datetime

from duckfleet.fleet.diagnosis.causes import CAUSES
from duckfleet.fleet.diagnosis.findings import Argument, Diagnosis, Evidence, Finding

MANY_CAUSES = 6


def explain_text(diagnosis: Diagnosis) -> str:
    """A page on one duck."""
    count = len(diagnosis.findings)
    head = f"{diagnosis.duck} at {_time(diagnosis.at, None)}: "
    head += "nothing is wrong that can be seen" if not count else f"{count} finding{'s' * (count > 1)}"
    lines = [head]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += ["", *_finding(number, finding, diagnosis.at)]
    if diagnosis.unknown:
        lines += ["", "unknown, and nothing is concluded from it:"]
        lines += [f"  {unknown.source}: {unknown.reason}" for unknown in diagnosis.unknown]
    return "\n".join(lines) + "\n"


def _finding(number: int, finding: Finding, now: datetime) -> list[str]:
    lines = [f"{number}. {finding.severity.name.lower()}: {finding.title} [{finding.code}]"]
    lines += [f"   seen    {_evidence(evidence, now)}" for evidence in finding.evidence]
    width = max(len(cause.code) for cause in finding.causes)
    for cause in finding.causes[:MANY_CAUSES]:
        lines.append(f"   {cause.weight:6.2f}  {cause.code:<{width}}  {CAUSES[cause.code].text}")
    if len(finding.tied) > 1:
        lines.append("           the evidence is the same for the first " + str(len(finding.tied)))
    shown = {cause.code for cause in finding.causes[:MANY_CAUSES]}
    for argument in finding.arguments:
        lines.append(f"   because {_evidence(argument.evidence, now)}")
        lines += [f"           {text}" for text in _effect(argument, shown)]
    lines.append(f"   next    {finding.next_test.text} (about {finding.next_test.cost_min} min)")
    return lines


def _effect(argument: Argument, shown: set[str]) -> list[str]:
    """What this evidence makes of the causes that are still in question."""
    more = sorted((-factor, code) for code, factor in argument.factors if factor > 1 and code in shown)
    less = sorted((factor, code) for code, factor in argument.factors if factor < 1 and code in shown)
    texts = []
    if more:
        texts.append("more likely: " + ", ".join(f"{code} x{-factor:g}" for factor, code in more))
    if less:
        texts.append("less likely: " + ", ".join(f"{code} x{factor:g}" for factor, code in less))
    return texts


def _evidence(evidence: Evidence, now: datetime) -> str:
    at = f", {_time(evidence.at, now)}" if evidence.at and evidence.at != now else ""
    return f"{evidence.source}{at}: {evidence.text}"


def _time(at: datetime, now: datetime | None) -> str:
    """Times of today without their date."""
    return f"{at:%H:%M:%S}" if now is not None and at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S} UTC"
