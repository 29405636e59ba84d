"""`dmidecode -t 0,1,17`: firmware, system, memory slots. Sizes come in kB, MB, GB or TB, empty slots in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from duckfleet.fleet.diagnosis.sources.raw import integer, not_an_answer

UNIT_KIB = {"kb": 1, "kib": 1, "mb": 1 << 10, "mib": 1 << 10, "gb": 1 << 20, "gib": 1 << 20, "tb": 1 << 30}
EMPTY_SLOTS = ("no module installed", "not installed", "none", "empty")
PLACEHOLDERS = ("", "default string", "system serial number", "to be filled by o.e.m.", "not specified", "unknown")


@dataclass(frozen=True, slots=True)
class MemorySlot:
    """SMBIOS type 17 (DSP0134 7.18). None: the firmware does not say."""

    locator: str
    size_mib: int | None  # 0: empty
    rated_mt_per_s: int | None
    configured_mt_per_s: int | None
    part_number: str = ""


@dataclass(frozen=True, slots=True)
class Smbios:
    bios_version: str
    bios_date: date | None
    product: str
    serial: str  # empty for placeholders, all zeros, all F
    slots: tuple[MemorySlot, ...]

    @property
    def modules(self) -> tuple[MemorySlot, ...]:
        return tuple(slot for slot in self.slots if slot.size_mib)

    @property
    def total_mib(self) -> int | None:
        """None where a slot does not say what it holds, or there are no slots."""
        sizes = [slot.size_mib for slot in self.slots]
        if not sizes or None in sizes:
            return None
        return sum(size for size in sizes if size is not None)


def parse(text: str) -> Smbios:
    """Raises `Unreadable` when the text has no structure of the wanted types."""
    structures: list[tuple[int, dict[str, str]]] = []
    for block in re.split(r"^Handle 0x", text, flags=re.MULTILINE)[1:]:
        kind = re.match(r"[0-9A-Fa-f]{1,4}, DMI type ([0-9]{1,3}),", block)
        if kind:
            lines = re.findall(r"^(?:\t| {2,8})([^\t :\n][^:\n]*):[ \t]*(.*?)[ \t]*$", block, re.MULTILINE)
            structures.append((int(kind[1]), dict(lines)))
    if not any(kind in (0, 1, 17) for kind, _ in structures):
        raise not_an_answer(text)
    bios = next((fields for kind, fields in structures if kind == 0), {})
    system = next((fields for kind, fields in structures if kind == 1), {})
    return Smbios(
        bios.get("Version", ""),
        _date(bios.get("Release Date", "")),
        system.get("Product Name", ""),
        identity(system.get("Serial Number", "")),
        tuple(_slot(fields) for kind, fields in structures if kind == 17),
    )


def _slot(fields: dict[str, str]) -> MemorySlot:
    configured = fields.get("Configured Memory Speed") or fields.get("Configured Clock Speed") or ""
    return MemorySlot(
        fields.get("Locator", ""),
        size_mib(fields.get("Size", "")),
        _mt_per_s(fields.get("Speed", "")),
        _mt_per_s(configured),
        fields.get("Part Number", ""),
    )


def size_mib(text: str) -> int | None:
    """`32 GB`, `32768 MB`, `No Module Installed` (0); None where the firmware does not know."""
    if text.strip().lower() in EMPTY_SLOTS:
        return 0
    match = re.fullmatch(r"([0-9]{1,12})\s*([A-Za-z]{2,3})", text.strip())
    unit = UNIT_KIB.get(match[2].lower()) if match else None
    if match is None or unit is None:
        return None
    return int(match[1]) * unit >> 10


def _mt_per_s(text: str) -> int | None:
    """MT/s; older versions of dmidecode call the same number MHz."""
    match = re.fullmatch(r"([0-9]{1,6}) ?(?:MT/s|MHz|MTs)", text.strip())
    return (integer(match[1]) or None) if match else None


def _date(text: str) -> date | None:
    match = re.fullmatch(r"([0-9]{2})/([0-9]{2})/([0-9]{4})", text.strip())
    try:
        return date(int(match[3]), int(match[1]), int(match[2])) if match else None
    except ValueError:
        return None


def identity(serial: str) -> str:
    """The serial number, or nothing where the vendor left a placeholder: words, zeros, all F."""
    bare = re.sub(r"[\s:.-]", "", serial)
    if serial.strip().lower() in PLACEHOLDERS or not bare.strip("0") or not bare.lower().strip("f"):
        return ""
    return serial.strip()
