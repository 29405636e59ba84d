"""Our pattern test over free memory: one line of JSON, or what the shell said instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import hexadecimal, json_object, rows, whole


@dataclass(frozen=True, slots=True)
class WrongBits:
    address: int
    flipped: int  # bits that differ


@dataclass(frozen=True, slots=True)
class PatternTest:
    tested_bytes: int
    errors: tuple[WrongBits, ...]  # the test lists at most 64
    patterns: tuple[str, ...]

    @property
    def same_bits(self) -> int:
        """The bits that are wrong in every error: a stuck line or cell shows as one."""
        common = (1 << 64) - 1
        for error in self.errors:
            common &= error.flipped
        return common if self.errors else 0


def parse(text: str) -> PatternTest:
    """Raises `Unreadable` when it is no report, or nothing was tested."""
    report = json_object(text)
    tested = whole(report.get("tested_bytes"))
    if tested is None or "errors" not in report:
        raise Unreadable("is no report of the pattern test")
    if tested <= 0:
        raise Unreadable("tested nothing")
    errors = tuple(wrong for row in rows(report, "errors") if (wrong := wrong_bits(row)))
    return PatternTest(tested, errors, tuple(str(name) for name in rows(report, "patterns")))


def wrong_bits(row: Any) -> WrongBits | None:
    """An entry of the list of errors: address, expected, got, in hexadecimal."""
    fields = row if isinstance(row, dict) else {}
    address, expected, got = (hexadecimal(str(fields.get(key, ""))) for key in ("address", "expected", "got"))
    if address is None or expected is None or got is None or expected == got:
        return None
    return WrongBits(address, expected ^ got)
