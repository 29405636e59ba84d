"""What the server did about ducks that fell silent, as the event log tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.inventory.store import Store

PREFIX = "failover_"
_LOOK_BACK = 2000  # events


@dataclass(frozen=True, slots=True)
class Failover:
    """One line of the log. `kind`: "taken_over", "not_covered" or "rejoined"; times are 0 but for the first."""

    at_s: float
    kind: str
    ducks: tuple[str, ...]
    generation: int  # of duties in one run of the server, not of roster or plan
    what: str
    silent_ms: float
    took_ms: float


def recent_failovers(store: Store) -> Sequence[Failover]:
    """Oldest first; what lies further back than some thousand events is left out."""
    found = []
    for event in store.events(limit=_LOOK_BACK):
        if event.kind.startswith(PREFIX):
            told = event.evidence
            found.append(
                Failover(
                    event.at_s,
                    event.kind.removeprefix(PREFIX),
                    tuple(map(str, told.get("ducks", ()))),
                    int(told.get("failover_generation", 0)),
                    str(told.get("error") or told.get("what", "")),
                    float(told.get("silent_ms", 0.0)),
                    float(told.get("took_ms", 0.0)),
                )
            )
    return found
