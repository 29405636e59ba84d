"""Machine checks: the `MCE` line of /proc/interrupts and logged records. Polls (`MCP`) count looks, not errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import hexadecimal, not_an_answer

UNCORRECTED = 1 << 61  # IA32_MCi_STATUS.UC, Intel SDM volume 3B, 16.3.2.2


@dataclass(frozen=True, slots=True)
class MachineCheck:
    bank: int
    status: int

    @property
    def is_memory(self) -> bool:
        """Compound error code 0000 0000 1MMM CCCC: memory controller (SDM volume 3B, table 16-10)."""
        return self.status & 0xEF80 == 0x0080

    @property
    def is_uncorrected(self) -> bool:
        return bool(self.status & UNCORRECTED)

    @property
    def num_corrected(self) -> int:
        """Bits 52:38 count them where the bank can; a record stands for one at least."""
        return 0 if self.is_uncorrected else max(1, self.status >> 38 & 0x7FFF)


@dataclass(frozen=True, slots=True)
class MachineChecks:
    exceptions: int  # all CPUs together
    logged: tuple[MachineCheck, ...]


RECORD = re.compile(r"Machine Check(?: Exception)?: [0-9a-fx]+ Bank ([0-9]{1,3}): ((?:0x)?[0-9a-f]{1,16})\b")

MCELOG_RECORD = re.compile(r"^CPU [0-9]{1,4} BANK ([0-9]{1,3})\b(?s:.{0,400}?)^STATUS ((?:0x)?[0-9a-f]{1,16})\b", re.M)


def records(text: str) -> tuple[MachineCheck, ...]:
    """Records as the kernel logs them, `CPU 4: Machine Check: 0 Bank 7: bd80000000100090`, or as mcelog does."""
    found = RECORD.findall(text) + MCELOG_RECORD.findall(text)
    return tuple(MachineCheck(int(bank), hexadecimal(status) or 0) for bank, status in found)


def parse(text: str) -> MachineChecks:
    """Raises `Unreadable` without the exceptions line and without records."""
    line = re.search(r"^\s*MCE:((?:\s+[0-9]{1,12})+)\s+Machine check exceptions", text, re.MULTILINE)
    logged = records(text)
    if line is None and not logged:
        raise not_an_answer(text)
    return MachineChecks(sum(map(int, line[1].split())) if line else 0, logged)
