"""The firmware of a box from its own words: board, microcode, network card, disks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.memory import dmidecode

TEXTS = ("dmidecode", "microcode", "card", "disks")
"""What the role `firmware` brings, by the names in its `firmware_commands`; each may have failed for itself."""
MAX_CHARS = 60_000  # of each, many times what a box has to say
NAMES = ("product", "serial", "bios_version", "bios_date", "microcode", "modules", "card_driver", "card_version",
         "card_firmware", "disks")  # fmt: skip
"""What is compared from one inventory to the next."""


def read(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, by names; what could not be read is missing, and named in `unknown` with the reason."""
    said = {name: str(texts.get(name) or "")[:MAX_CHARS].replace("\r", "") for name in TEXTS}
    found: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    try:
        smbios = dmidecode.parse(said["dmidecode"])
        found["bios_version"] = smbios.bios_version
        found["bios_date"] = smbios.bios_date.isoformat() if smbios.bios_date else ""
        found["product"] = smbios.product
        found["serial"] = smbios.serial
        found["modules"] = [
            " ".join(
                part for part in (slot.locator, f"{slot.size_mib} MiB", dmidecode.identity(slot.part_number)) if part
            )
            for slot in smbios.modules
        ]
    except Unreadable as error:
        unknown["dmidecode"] = str(error)
    if match := re.search(r"0x[0-9a-fA-F]{1,16}", said["microcode"]):
        found["microcode"] = match[0]
    card = dict(re.findall(r"^(driver|version|firmware-version): *(.*?) *$", said["card"], re.MULTILINE))
    found.update({f"card_{name.partition('-')[0]}": value for name, value in card.items() if value})
    disks: dict[str, dict[str, str]] = {}
    for path, name, value in re.findall(r"^(\S+)/(model|firmware_rev|rev):(.*)$", said["disks"], re.MULTILINE):
        disks.setdefault(path, {})[name] = value.strip()
    found["disks"] = [
        " ".join(disk[name] for name in ("model", "firmware_rev", "rev") if name in disk) for disk in disks.values()
    ]
    for name, is_there in (("microcode", "microcode" in found), ("card", bool(card)), ("disks", bool(disks))):
        if not is_there:
            unknown[name] = " ".join(said[name].split())[:200] or "said nothing"
    return {**{name: value for name, value in found.items() if value}, "unknown": unknown}


def summary(found: Mapping[str, Any]) -> str:
    """One line for a table."""
    parts = [
        f"{label} {found[name]}" if label else str(found[name])
        for name, label in (
            ("product", ""),
            ("bios_version", "BIOS"),
            ("bios_date", "of"),
            ("microcode", "microcode"),
            ("card_driver", "card"),
            ("card_firmware", "firmware"),
        )
        if found.get(name)
    ]
    lacking = ", ".join(found.get("unknown", {}))
    return "; ".join(part for part in (", ".join(parts), f"unknown: {lacking}" if lacking else "") if part)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is another than at the inventory before; what one of them could not read is no change."""
    names = [name for name in NAMES if name in before and name in now]
    return [f"{name}: {before[name]} before, {now[name]} now" for name in names if before[name] != now[name]]
