"""What a diagnosis says: findings with their evidence, ranked causes, and the cheapest next test. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

INSUFFICIENT = "unknown_insufficient"
HEALTHY = "none"
STARTING = "starting"
"""The finding on a duck that was told to start a moment ago: there is nothing to do but to wait."""


class Severity(IntEnum):
    """What a finding means for service, worst first when sorted downwards."""

    NOTE = 1  # to be mended when somebody is there anyway
    REPAIR = 2  # serves well now, will not come back by itself one day
    DEGRADED = 3  # serves slowly, or would hold the others up
    CRITICAL = 4  # cannot serve, or would compute wrongly


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen: where, when, what."""

    source: str
    at: datetime | None
    text: str


@dataclass(frozen=True, slots=True)
class Argument:
    """A piece of evidence and how much more likely each cause is because of it (below 1: less)."""

    evidence: Evidence
    factors: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause with its share of the belief in this finding; shares of a finding add up to 1."""

    code: str
    weight: float


@dataclass(frozen=True, slots=True)
class NextTest:
    """What to do next: the cheapest thing that tells the likely causes apart, or mends the one that is left."""

    text: str
    cost_min: int


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    title: str
    severity: Severity
    evidence: tuple[Evidence, ...]
    arguments: tuple[Argument, ...]
    causes: tuple[Cause, ...]  # most likely first
    next_test: NextTest

    @property
    def top(self) -> Cause:
        return self.causes[0]

    @property
    def is_for_want_of_evidence(self) -> bool:
        """Whether it only says that not enough is known: nobody is kept out for that."""
        return self.top.code == INSUFFICIENT

    @property
    def tied(self) -> tuple[Cause, ...]:
        """The causes that the evidence does not tell from the first."""
        return tuple(cause for cause in self.causes if cause.weight > self.top.weight * 0.999)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A source that was asked and gave no answer: nothing is concluded from it."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings on one duck, the worst first."""

    duck: str
    at: datetime
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]

    @property
    def top_cause(self) -> str:
        """The first cause of the first finding; `none` when there is no finding."""
        return self.findings[0].top.code if self.findings else HEALTHY

    @property
    def is_to_be_held(self) -> bool:
        """Whether automation should keep the duck out of service: not for notes, and never for want of evidence."""
        return any(
            finding.severity >= Severity.DEGRADED and not finding.is_for_want_of_evidence for finding in self.findings
        )
