"""EDAC counters of the memory controllers. No controller means no error correction, not "no errors"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

NO_CONTROLLER = (
    r"/sys/devices/system/edac/mc\S*: No such file or directory",
    r"No memory controller data found",
)


@dataclass(frozen=True, slots=True)
class MemoryController:
    name: str
    corrected: int
    uncorrected: int
    seconds: int | None  # since the counters were reset


@dataclass(frozen=True, slots=True)
class Edac:
    controllers: tuple[MemoryController, ...]  # empty: this box has no error correction

    @property
    def corrected(self) -> int:
        return sum(controller.corrected for controller in self.controllers)

    @property
    def uncorrected(self) -> int:
        return sum(controller.uncorrected for controller in self.controllers)


def parse(text: str) -> Edac:
    """Lines `…/mc0/ce_count:0`. Raises `Unreadable` unless it has counters or says that there is no controller."""
    values: dict[str, dict[str, str]] = {}
    for name, key, value in re.findall(r"^\S*/(mc[0-9]{1,3})/(\w+):(.*)$", text, re.MULTILINE):
        values.setdefault(name, {})[key] = value.strip()
    controllers = []
    for name, fields in sorted(values.items()):
        corrected, uncorrected = _count(fields, "ce_count"), _count(fields, "ue_count")
        if corrected is None or uncorrected is None:
            continue
        controllers.append(MemoryController(name, corrected, uncorrected, _count(fields, "seconds_since_reset")))
    if not controllers and not any(re.search(pattern, text) for pattern in NO_CONTROLLER):
        raise not_an_answer(text)
    return Edac(tuple(controllers))


def _count(fields: dict[str, str], key: str) -> int | None:
    value = fields.get(key, "")
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None
