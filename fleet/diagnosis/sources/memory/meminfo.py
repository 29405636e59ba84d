"""`/proc/meminfo`: what the kernel has, after firmware and graphics took their part."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import not_an_answer


@dataclass(frozen=True, slots=True)
class Meminfo:
    total_kib: int


def parse(text: str) -> Meminfo:
    """Raises `Unreadable` without a MemTotal above zero."""
    match = re.search(r"^MemTotal:\s+([0-9]{1,15}) kB\s*$", text, re.MULTILINE)
    if match is None:
        raise not_an_answer(text)
    if int(match[1]) == 0:
        raise Unreadable("says 0 kB")
    return Meminfo(int(match[1]))
