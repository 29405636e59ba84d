"""SMBIOS tables for virtual ducks: what their firmware says of the box and of its memory modules.

Layouts: DMTF DSP0134, SMBIOS 3.x, 7.18 (Memory Device). QEMU makes such tables itself, but none with an empty slot.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MEMORY_DEVICE = 17
FORM_FACTOR_SODIMM = 0x0D
TYPE_DDR4 = 0x1A
SPEED_MTS = 3200
_FIRST_HANDLE = 0x1100
_PHYSICAL_ARRAY_HANDLE = 0x1000  # QEMU's own table of the memory array
_NO_ERROR_HANDLE = 0xFFFE


def memory_devices(sizes_mib: Sequence[int]) -> bytes:
    """One type 17 structure a slot; a size of 0 is an empty slot."""
    return b"".join(_memory_device(slot, size) for slot, size in enumerate(sizes_mib))


def _memory_device(slot: int, size_mib: int) -> bytes:
    present = size_mib > 0
    strings = [f"DIMM {slot}", f"BANK {slot}", "Lab" if present else "", f"{1000 + slot}" if present else ""]
    numbers = _numbered(strings)
    width = 64 if present else 0
    body = struct.pack(
        "<HHHHHBBBBBHHBBBBBIHHHH",
        _PHYSICAL_ARRAY_HANDLE,
        _NO_ERROR_HANDLE,
        width,  # total width: as wide as the data, so no ECC
        width,
        size_mib,  # in MiB while bit 15 is clear
        FORM_FACTOR_SODIMM if present else 0x02,
        0,  # no set
        numbers[0],
        numbers[1],
        TYPE_DDR4 if present else 0x02,
        0x0080 if present else 0x0004,  # synchronous; unknown
        SPEED_MTS if present else 0,
        numbers[2],
        numbers[3],
        0,  # asset tag
        0,  # part number
        1 if present else 0,  # ranks
        0,  # extended size
        SPEED_MTS if present else 0,  # configured
        1200 if present else 0,  # mV: minimum, maximum, configured
        1200 if present else 0,
        1200 if present else 0,
    )
    header = struct.pack("<BBH", MEMORY_DEVICE, 4 + len(body), _FIRST_HANDLE + slot)
    text = b"".join(string.encode() + b"\0" for string in strings if string)
    return header + body + text + b"\0"


def _numbered(strings: Sequence[str]) -> list[int]:
    """The number of each string in the string table that follows a structure; 0 for none."""
    numbers, last = [], 0
    for string in strings:
        last += bool(string)
        numbers.append(last if string else 0)
    return numbers
