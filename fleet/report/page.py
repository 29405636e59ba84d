"""The page of a report as one frozen record: everything the renderers show, and what the next report compares with.

Times are Unix seconds. Severities and states are their names, so that the record is its own JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duckfleet.fleet.diagnosis.findings import Severity

PAGE_FORMAT = 1
EXIT_BASE = 10
"""The exit code of a report is 0 without a finding, else this plus the worst `Severity` (11 note … 14 critical)."""
SEVERITIES = tuple(severity.name.lower() for severity in sorted(Severity, reverse=True))  # worst first


@dataclass(frozen=True, slots=True)
class Cell:
    """One duck on the board. `severity` is its worst finding's, empty without one."""

    duck: str
    mac: str
    address: str
    domain: str
    rack: str
    state: str
    since_s: float
    probed_at_s: float  # 0: never
    severity: str
    is_ready: bool
    remark: str  # why it cannot serve; empty when it can
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CauseLine:
    code: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class FindingItem:
    """A finding on a duck, as the page tells it."""

    duck: str
    mac: str
    rack: str
    code: str
    title: str
    severity: str
    evidence: tuple[str, ...]
    causes: tuple[CauseLine, ...]  # most likely first
    num_tied: int  # so many of the first causes the evidence does not tell apart
    next_test: str
    next_cost_min: int

    @property
    def anchor(self) -> str:
        """The id of its place in the page."""
        return f"finding-{self.mac.replace(':', '')}-{self.code}"


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to do at one duck."""

    duck: str
    address: str
    rack: str
    place: str
    severity: str
    title: str
    likely: tuple[str, ...]
    first: str
    then: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnknownLine:
    """A source that gave no answer about some ducks."""

    source: str
    reason: str
    ducks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One duck's values of a measurement, oldest first."""

    duck: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """One measurement over time, in the unit that is shown."""

    name: str
    title: str
    unit: str
    low_is_bad: bool
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Past:
    """The figures of one report, for the curve over all of them."""

    at_s: float
    num_ducks: int
    num_ready: int
    num_findings: int


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is not as it was in the last report. `direction`: `worse`, `better` or `other`."""

    direction: str
    duck: str
    text: str


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A report that did not reach one receiver, or did so only later (`arrived_at_s`)."""

    target: str
    report_at_s: float
    error: str
    num_attempts: int
    arrived_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """One report."""

    fleet: str
    at_s: float
    previous_at_s: float  # of the last report; 0: there is none
    previous_error: str  # why the last report could not be compared with
    cells: tuple[Cell, ...]  # by domain, then by address
    findings: tuple[FindingItem, ...]  # the worst first
    work: tuple[Work, ...]  # in the order of a walk
    unknown: tuple[UnknownLine, ...]
    trends: tuple[Trend, ...]
    changes: tuple[Change, ...]
    events: tuple[tuple[str, ...], ...]  # (kind, how often since the last report)
    undelivered: tuple[Undelivered, ...]
    history: tuple[Past, ...]  # oldest first, this report's last
    format: int = field(default=PAGE_FORMAT)

    @property
    def worst(self) -> str:
        """The worst severity of all; empty without a finding."""
        return min((finding.severity for finding in self.findings), key=SEVERITIES.index, default="")

    @property
    def exit_code(self) -> int:
        return EXIT_BASE + Severity[self.worst.upper()] if self.worst else 0

    @property
    def num_ready(self) -> int:
        return sum(cell.is_ready for cell in self.cells)

    @property
    def verdict(self) -> str:
        """The report in a line."""
        ready = f"{self.num_ready} of {len(self.cells)} ducks can serve"
        if not self.findings:
            return f"no findings; {ready}"
        counts = [(sum(item.severity == name for item in self.findings), name) for name in SEVERITIES]
        kinds = ", ".join(f"{count} {name}" for count, name in counts if count)
        plural = "s" * (len(self.findings) > 1)
        return f"{len(self.findings)} finding{plural} ({kinds}); {ready}"
