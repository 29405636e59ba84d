"""Reads safetensors files through a memory map, one tensor at a time, with every length checked first.

Format: https://github.com/huggingface/safetensors#format (u64 header length, JSON header, data).
Written here because `safe_open` gives numpy neither bf16 nor FP8, and neither gives the stored bytes to digest.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BadCheckpoint

MAX_HEADER_BYTES = 100 << 20  # the reference implementation's own bound

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class Region:
    """Where one tensor lies in one file."""

    file: Path
    dtype: str  # safetensors' own name
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    num_bytes: int

    def read(self) -> npt.NDArray[np.generic]:
        """A read-only view of the file; bytes come in as they are touched."""
        data = (
            np.memmap(self.file, np.uint8, "r", self.offset, (self.num_bytes,))
            if self.num_bytes
            else np.empty(0, np.uint8)
        )
        view: npt.NDArray[np.generic] = data.view(_DTYPES[self.dtype]).reshape(self.shape)
        return view


def read_header(file: Path) -> dict[str, Region]:
    """Every tensor of the file. Raises `BadCheckpoint` naming the file and the tensor that is wrong."""
    size = file.stat().st_size
    with file.open("rb") as f:
        head = f.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise BadCheckpoint(f"{file} is not a safetensors file, or was cut short (header of {length} bytes)")
        try:
            header = json.loads(f.read(length))
        except ValueError as e:
            raise BadCheckpoint(f"{file}: its header is not JSON ({e})") from e
    start = 8 + length
    regions: dict[str, Region] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
            first, last = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as e:
            raise BadCheckpoint(f"{file}: the entry of {name} is not one ({e})") from e
        if dtype not in _DTYPES:
            raise BadCheckpoint(f"{file}: {name} is {dtype}; readable are {', '.join(_DTYPES)}")
        expected = _DTYPES[dtype].itemsize
        for n in shape:
            expected *= n
        if min(shape, default=0) < 0 or not 0 <= first <= last <= size - start or last - first != expected:
            raise BadCheckpoint(
                f"{file}: {name} lies outside the file or has the wrong length; was the file cut short?"
            )
        regions[name] = Region(file, dtype, shape, start + first, last - first)
    return regions
