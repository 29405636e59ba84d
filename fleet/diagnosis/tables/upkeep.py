"""Where nothing can be said."""

from __future__ import annotations

from typing import Any

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, STARTING, Evidence, Severity
from duckfleet.fleet.diagnosis.history import NEVER_SEEN, NOT_SILENT, STILL_STARTING
from duckfleet.fleet.diagnosis.observation import Observed
from duckfleet.fleet.diagnosis.tables.rows import Symptom

MOSTLY = 4  # less than this part of what was asked is known: nothing can be said


def _read_and_failed(case: Case) -> tuple[int, list[Observed[Any]]]:
    """How many readings of the box there are, and those that were tried in vain."""
    look = case.look
    around = {look.events.source, look.outside.source, look.dhcp.source, look.packets.source}
    box = [observed for observed in look.observations() if observed.source not in around]
    failed = [observed for observed in box if observed.value is None and observed.was_tried and observed.at is not None]
    return sum(observed.value is not None for observed in box), failed


def _little_is_known(num_read: int, num_failed: int) -> bool:
    return num_read == 0 or num_read * MOSTLY < num_read + num_failed


def nothing_is_known(case: Case) -> tuple[Evidence, ...]:
    """The box is there, and next to nothing that it was asked was answered."""
    num_read, failed = _read_and_failed(case)
    if case.history.standing not in (NOT_SILENT, NEVER_SEEN) or not _little_is_known(num_read, len(failed)):
        return ()
    if not failed:
        return (case.tells("nothing was probed"),)
    share = f"{len(failed)} of {num_read + len(failed)} readings could not be taken"
    return (case.tells(f"{share}, the first: {failed[0].source} {failed[0].unknown}"),)


def is_starting(case: Case) -> tuple[Evidence, ...]:
    """On its way, and there is nothing else to go by."""
    num_read, failed = _read_and_failed(case)
    if case.history.standing != STILL_STARTING or not _little_is_known(num_read, len(failed)):
        return ()
    return (case.tells("it was told to start, and no state of a start has lasted too long", case.history.woken_at),)


SYMPTOMS = (
    Symptom(STARTING, "is starting: too early to say anything", Severity.NOTE, is_starting, {INSUFFICIENT: 1.0}, ()),
    Symptom("nothing_known", "next to nothing could be read", Severity.NOTE, nothing_is_known, {INSUFFICIENT: 1.0}, ()),
)
