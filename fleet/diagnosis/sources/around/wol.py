"""Magic packets sent: when and to which MAC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from duckfleet.fleet.diagnosis.sources.raw import moment, not_an_answer

NONE_SENT = "no magic packet sent"


@dataclass(frozen=True, slots=True)
class MagicPacket:
    at: datetime
    mac: str


def parse(text: str) -> tuple[MagicPacket, ...]:
    """Empty when the text says that none was sent. Raises `Unreadable` when it says neither."""
    found = []
    for when, mac in re.findall(r"^(\S+) magic packet to ([0-9A-Fa-f:]{17})\b", text, re.MULTILINE):
        at = moment(when)
        if at is not None:
            found.append(MagicPacket(at, mac.lower()))
    if not found and NONE_SENT not in text:
        raise not_an_answer(text)
    return tuple(found)
