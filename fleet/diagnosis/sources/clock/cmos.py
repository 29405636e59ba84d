"""RTC registers as read from the chip: the battery bit (0x0d) and the firmware's diagnostic status (0x0e)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import hexadecimal, not_an_answer

FLOATING = 0xFF  # a bus that nothing drives
VALID_RAM_AND_TIME = 0x80  # register D, MC146818 data sheet
LOST_POWER, BAD_CHECKSUM, BAD_TIME = 0x80, 0x40, 0x04  # diagnostic status, IBM AT technical reference


@dataclass(frozen=True, slots=True)
class CmosRegisters:
    valid_ram_and_time: bool | None
    lost_power: bool | None
    bad_checksum: bool | None
    bad_time: bool | None


def parse(text: str) -> CmosRegisters:
    """Lines `reg 0x0d = 0x80`. All-ones is nobody's answer. Raises `Unreadable` without registers D and E."""
    values = {}
    for name, value in re.findall(r"^reg (0x[0-9a-fA-F]{1,2}) = (0x[0-9a-fA-F]{1,2})\s*$", text, re.MULTILINE):
        values[hexadecimal(name)] = hexadecimal(value)
    status, diagnostic = _driven(values.get(0x0D)), _driven(values.get(0x0E))
    if status is None and diagnostic is None:
        raise not_an_answer(text)

    def bit(mask: int) -> bool | None:
        return None if diagnostic is None else bool(diagnostic & mask)

    valid = None if status is None else bool(status & VALID_RAM_AND_TIME)
    return CmosRegisters(valid, bit(LOST_POWER), bit(BAD_CHECKSUM), bit(BAD_TIME))


def _driven(value: int | None) -> int | None:
    return None if value == FLOATING else value
