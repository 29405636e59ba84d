"""The RTC as found at boot, before anything set it, beside the host's time at that moment; newest last."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from duckfleet.fleet.diagnosis.sources.raw import moment, not_an_answer


@dataclass(frozen=True, slots=True)
class RtcReading:
    rtc: datetime  # as it stands in the chip, read as UTC
    host: datetime

    @property
    def offset_s(self) -> float:
        """How far the RTC is ahead."""
        return (self.rtc - self.host).total_seconds()


def parse(text: str) -> tuple[RtcReading, ...]:
    """One line: `rtc=… host=… [earlier_rtc=… earlier_host=…]`. Raises `Unreadable` without the first pair."""
    fields = dict(re.findall(r"(\w+)=(\S+)", text))
    found = []
    for prefix in ("earlier_", ""):
        rtc, host = moment(fields.get(f"{prefix}rtc")), moment(fields.get(f"{prefix}host"))
        if rtc is not None and host is not None:
            found.append(RtcReading(rtc, host))
        elif not prefix:
            raise not_an_answer(text)
    return tuple(found)
