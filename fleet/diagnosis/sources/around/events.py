"""The duck's history: time, state after the event, event, evidence as JSON, separated by tabs; oldest first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duckfleet.fleet.diagnosis.sources.raw import moment, not_an_answer


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    at: datetime
    state: str  # after the event
    event: str
    evidence: Mapping[str, Any]


def parse(text: str) -> tuple[HistoryEvent, ...]:
    """An empty text is an empty history. Raises `Unreadable` when lines are there and none is an event."""
    found = []
    for line in text.splitlines():
        columns = line.split("\t")
        at = moment(columns[0])
        if len(columns) != 4 or at is None:
            continue
        found.append(HistoryEvent(at, columns[1], columns[2], _evidence(columns[3])))
    if not found and text.strip():
        raise not_an_answer(text)
    return tuple(sorted(found, key=lambda event: event.at))


def _evidence(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
