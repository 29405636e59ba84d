"""What a row of the tables is.

A symptom has a prior weight for each cause it may have. A clue, where its evidence is seen, multiplies the weights: a
factor says how much more often this evidence is seen when the cause holds than when another one does. Weights are
judgements in steps (decisive, strong, good, some), not measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity

DECISIVE, STRONG, GOOD, SOME = 100.0, 20.0, 6.0, 2.5
NEVER, HARDLY, RARELY, LESS = 0.01, 0.05, 0.2, 0.5


@dataclass(frozen=True, slots=True)
class Clue:
    """Evidence and what it makes of causes; `rest` is for those that are not named."""

    see: Callable[[Case], Evidence | None]
    factors: Mapping[str, float]
    rest: float = 1.0


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something that is wrong. Not shown where a symptom in `part_of` is: that one has the same evidence as a clue."""

    code: str
    title: str
    severity: Severity
    see: Callable[[Case], tuple[Evidence, ...]]
    priors: Mapping[str, float]
    clues: tuple[Clue, ...]
    part_of: tuple[str, ...] = ()
