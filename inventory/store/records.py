"""Frozen rows of the store, as the rest of the product sees them. Times are Unix seconds (`*_at_s`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Evidence = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DuckRow:
    """What the store knows of a duck: its lifecycle state, since when, when last confirmed, and what that rests on."""

    mac: str
    name: str
    address: str
    domain: str
    state: str
    since_s: float
    confirmed_s: float
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log. Events of the whole fleet have no `mac`; events without a change of state no states."""

    id: int
    at_s: float
    mac: str
    duck: str
    kind: str
    from_state: str
    to_state: str
    evidence: Evidence
    actor: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state that was written."""

    event_id: int
    from_state: str
    to_state: str


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One probe of one duck. `outcome` is `ok` (the report is complete), or `unknown` (it could not run: `error`)."""

    id: int
    mac: str
    started_at_s: float
    finished_at_s: float
    outcome: str
    report: Mapping[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number that a probe run measured."""

    mac: str
    at_s: float
    name: str
    value: float
    unit: str
    probe_run_id: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A duck kept out of service. Kinds: `human` (only a person lifts it), `automatic`."""

    id: int
    mac: str
    kind: str
    reason: str
    placed_by: str
    placed_at_s: float
    lifted_by: str = ""
    lifted_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Weights that one duck was given for one plan."""

    id: int
    at_s: float
    generation: int
    mac: str
    rank: int
    model: str
    num_chunks: int
    total_bytes: int
    moved_bytes: int
    outcome: str  # `ok` or `failed`
