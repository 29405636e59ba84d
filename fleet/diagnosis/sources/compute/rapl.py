"""RAPL limits of the package by both interfaces, MSR and MMIO: the lower one that is enabled holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

LONG_TERM = "long_term"
LINE = re.compile(r"^\S*/(intel-rapl(?:-mmio)?)/intel-rapl(?:-mmio)?:0/(\w+):(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Long-term limits of package 0 by interface, those that are enabled."""

    long_term_uw: tuple[tuple[str, int], ...]

    @property
    def holding_uw(self) -> int | None:
        return min((limit for _, limit in self.long_term_uw), default=None)

    @property
    def holding_interface(self) -> str:
        return min(((limit, name) for name, limit in self.long_term_uw), default=(0, ""))[1]


def parse(text: str) -> PowerLimits:
    """Raises `Unreadable` without a package domain."""
    domains: dict[str, dict[str, str]] = {}
    for interface, key, value in LINE.findall(text):
        domains.setdefault(interface, {})[key] = value.strip()
    if not domains:
        raise not_an_answer(text)
    limits = []
    for interface, fields in sorted(domains.items()):
        limit = _long_term(fields)
        if limit and fields.get("enabled", "1") != "0":
            limits.append((interface, limit))
    return PowerLimits(tuple(limits))


def _long_term(fields: dict[str, str]) -> int | None:
    for index in range(3):
        value = fields.get(f"constraint_{index}_power_limit_uw", "")
        if fields.get(f"constraint_{index}_name") == LONG_TERM and re.fullmatch(r"[0-9]{1,15}", value):
            return int(value)
    return None
