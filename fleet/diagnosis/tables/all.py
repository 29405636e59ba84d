"""All symptoms."""

from __future__ import annotations

from duckfleet.fleet.diagnosis.tables import clock, daemon, firmware, link, memory, silent, speed, upkeep

SYMPTOMS = (
    *silent.SYMPTOMS,
    *daemon.SYMPTOMS,
    *memory.SYMPTOMS,
    *link.SYMPTOMS,
    *speed.SYMPTOMS,
    *clock.SYMPTOMS,
    *firmware.SYMPTOMS,
    *upkeep.SYMPTOMS,
)
