"""Bytes of a logical chunk (docs/formats.md), without its weights."""

from __future__ import annotations

from collections.abc import Iterable

from duckfleet.inventory.plan import FORMATS, Section

CHUNK_HEADER_BYTES = 64
SECTION_HEADER_BYTES = 16
TILE = 128


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
