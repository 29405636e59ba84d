"""Bytes of a logical chunk (docs/formats.md), without its weights."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from duckfleet.inventory.plan import FORMATS, Section

CHUNK_HEADER_BYTES = 64
SECTION_HEADER_BYTES = 16
TILE = 128
_PAGE_BYTES = 4096
_SEAL_BYTES = 16
_PACKED_ALIGNMENT_BYTES = 64
_PANEL = 16  # rows of a panel, and columns of a block
_GROUP_PANELS = 3
_GROUP_SCALE_BYTES = 16
_BITS = {"f32": 32, "bf16": 16, "e4m3": 8, "fp9": 9}


def num_tiles(first: int, count: int) -> int:
    """Tiles of 128 that [first, first + count) touches."""
    return -(-(first + count) // TILE) - first // TILE if count else 0


def section_bytes(section: Section, hidden: int, format: str) -> int:
    """One section: header, three matrices, and their scales in e4m3 and fp9."""
    num_weights = section.num_cols * hidden
    if format == "f32":
        matrix = 4 * num_weights
    elif format == "bf16":
        matrix = 2 * num_weights
    elif format in ("e4m3", "fp9"):
        matrix = 4 * num_tiles(section.col0, section.num_cols) * num_tiles(0, hidden) + num_weights
        if format == "fp9":
            matrix += -(-num_weights // 8)
    else:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    return SECTION_HEADER_BYTES + 3 * matrix


def chunk_bytes(sections: Iterable[Section], hidden: int, format: str) -> int:
    return CHUNK_HEADER_BYTES + sum(section_bytes(s, hidden, format) for s in sections)


def packed_chunk_bytes(sections: Iterable[Section], hidden: int, format: str) -> int:
    """Memory that a duck takes for the chunk: packed in panels (fp9_kernels/src/panel.hpp, chunk.cpp), with a checksum,
    in whole pages."""
    held = tuple(sections)
    packed = _aligned(CHUNK_HEADER_BYTES + SECTION_HEADER_BYTES * len(held), _PACKED_ALIGNMENT_BYTES)
    packed += sum(_packed_section_bytes(s.col0 % TILE, s.num_cols, hidden, format) for s in held)
    return _aligned(packed + _SEAL_BYTES, _PAGE_BYTES)


@cache
def _packed_section_bytes(first: int, num_cols: int, hidden: int, format: str) -> int:
    padded_hidden = _aligned(hidden, _PANEL)
    streams = 3 * num_cols * padded_hidden * _BITS[format] // 8
    if format not in ("e4m3", "fp9"):
        return streams
    groups_gate_up = -(-2 * num_cols // _PANEL // _GROUP_PANELS)
    groups_down = -(-padded_hidden // _PANEL // _GROUP_PANELS)
    gate_up = groups_gate_up * num_tiles(0, hidden) * _GROUP_SCALE_BYTES
    down = groups_down * num_tiles(first, num_cols) * _GROUP_SCALE_BYTES
    return streams + _aligned(gate_up, _PACKED_ALIGNMENT_BYTES) + _aligned(down, _PACKED_ALIGNMENT_BYTES)


def _aligned(num_bytes: int, to: int) -> int:
    return -(-num_bytes // to) * to
