"""`/proc/driver/rtc`: the clock's own time now, and what it says of its battery."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from duckfleet.fleet.diagnosis.sources.raw import moment, not_an_answer


@dataclass(frozen=True, slots=True)
class RtcStatus:
    """As the kernel's rtc_cmos prints it. `battery` is register D's "valid RAM and time" bit in words."""

    time: datetime | None  # as it stands in the chip, read as UTC
    battery: str  # okay, dead, or empty


def parse(text: str) -> RtcStatus:
    """Raises `Unreadable` when neither time nor battery is in it."""
    fields = dict(re.findall(r"^(\w+)\s*:\s*(\S+)\s*$", text, re.MULTILINE))
    time = moment(f"{fields.get('rtc_date', '')}T{fields.get('rtc_time', '')}")
    battery = fields.get("batt_status", "")
    if time is None and battery not in ("okay", "dead"):
        raise not_an_answer(text)
    return RtcStatus(time.replace(tzinfo=UTC) if time else None, battery if battery in ("okay", "dead") else "")
