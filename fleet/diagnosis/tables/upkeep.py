"""Where nothing can be said."""

from __future__ import annotations

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Evidence, Severity
from duckfleet.fleet.diagnosis.history import NEVER_SEEN, NOT_SILENT, STILL_STARTING
from duckfleet.fleet.diagnosis.tables.rows import Symptom

MOSTLY = 4  # less than this part of what was asked is known: nothing can be said


def nothing_is_known(case: Case) -> tuple[Evidence, ...]:
    """The box is there, and next to nothing that it was asked was answered."""
    if case.history.standing not in (NOT_SILENT, NEVER_SEEN, STILL_STARTING):
        return ()
    look = case.look
    around = {look.events.source, look.outside.source, look.dhcp.source, look.packets.source}
    box = [observed for observed in look.observations() if observed.source not in around]
    known = [observed for observed in box if observed.value is not None]
    failed = [observed for observed in box if observed.value is None and observed.was_tried and observed.at is not None]
    if len(known) * MOSTLY >= len(known) + len(failed) and known:
        return ()
    if not failed:
        early = case.history.standing == STILL_STARTING
        return (case.tells("it is starting: too early to say anything" if early else "nothing was probed"),)
    share = f"{len(failed)} of {len(known) + len(failed)} readings could not be taken"
    return (case.tells(f"{share}, the first: {failed[0].source} {failed[0].unknown}"),)


SYMPTOMS = (
    Symptom("nothing_known", "next to nothing could be read", Severity.NOTE, nothing_is_known, {INSUFFICIENT: 1.0}, ()),
)
