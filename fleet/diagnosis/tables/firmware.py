"""Firmware older than the fleet's."""

from __future__ import annotations

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity
from duckfleet.fleet.diagnosis.tables.rows import Symptom


def firmware_older(case: Case) -> Evidence | None:
    """Another version than the fleet's for this product, and an earlier date; newer is not our business."""
    smbios = case.look.smbios
    current = case.look.baseline.firmware.get(smbios.value.product) if smbios.value else None
    if smbios.value is None or current is None or smbios.value.bios_version == current.version:
        return None
    if smbios.value.bios_date is None or current.released is None or smbios.value.bios_date >= current.released:
        return None
    mine = f"{smbios.value.bios_version} of {smbios.value.bios_date}"
    return case.says(smbios, f"{mine}, the fleet has {current.version} of {current.released}")


def bios_outdated(case: Case) -> tuple[Evidence, ...]:
    older = firmware_older(case)
    return (older,) if older else ()


SYMPTOMS = (
    Symptom(
        "bios_outdated",
        "its firmware is older than the fleet's",
        Severity.NOTE,
        bios_outdated,
        {"bios_outdated": 1.0},
        (),
    ),
)
