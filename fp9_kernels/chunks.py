"""Logical chunks: what travels to a duck and what digests name (docs/formats.md)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from duckfleet.fp9_kernels.quantized import FORMATS, Quantized

MAGIC = b"DFCK"
VERSION = 1
HEADER = struct.Struct("<4sHBBIIIHHI36x")
SECTION = struct.Struct("<IIII")


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSection:
    """The columns [col0, col0 + num_cols) of one expert. gate, up: [num_cols, hidden]; down: [hidden, num_cols].

    The matrices are pieces of the expert's own: gate and up begin at row `col0`, down at column `col0`.
    """

    expert: int
    col0: int
    gate: Quantized
    up: Quantized
    down: Quantized


def encode_chunk(
    layer: int,
    slice: int,
    part: int,
    hidden: int,
    intermediate: int,
    format: str,
    sections: Sequence[ChunkSection],
) -> bytes:
    """The bytes of one logical chunk. Raises ValueError where a section does not fit."""
    pieces = [chunk_header(layer, slice, part, hidden, intermediate, format, len(sections))]
    previous = -1
    for section in sections:
        if section.expert <= previous:
            raise ValueError(f"expert {section.expert} follows expert {previous}: ids must ascend")
        previous = section.expert
        pieces.extend(encode_section(section, hidden, format))
    return b"".join(pieces)


def chunk_header(
    layer: int, slice: int, part: int, hidden: int, intermediate: int, format: str, num_sections: int
) -> bytes:
    """What a chunk begins with, for writers that stream the sections after it."""
    return HEADER.pack(MAGIC, VERSION, FORMATS.index(format), 0, layer, hidden, num_sections, slice, part, intermediate)


def encode_section(section: ChunkSection, hidden: int, format: str) -> Iterator[bytes]:
    """The bytes of one section, in pieces. Raises ValueError where it does not fit."""
    num_cols = section.gate.shape[0]
    if section.col0 % 16 or num_cols % 16:
        raise ValueError(f"expert {section.expert}: columns {section.col0} + {num_cols} are not multiples of 16")
    matrices = (
        ("gate", section.gate, (num_cols, hidden), (section.col0, 0)),
        ("up", section.up, (num_cols, hidden), (section.col0, 0)),
        ("down", section.down, (hidden, num_cols), (0, section.col0)),
    )
    for name, matrix, shape, origin in matrices:
        if matrix.format != format or matrix.shape != shape:
            raise ValueError(
                f"{name} of expert {section.expert} is {matrix.format} {list(matrix.shape)}, "
                f"the chunk wants {format} {list(shape)}"
            )
        if matrix.has_scales and (matrix.row0, matrix.col0) != origin:
            raise ValueError(
                f"{name} of expert {section.expert} is the piece at {[matrix.row0, matrix.col0]} of its matrix, "
                f"the chunk wants that at {list(origin)}: its scales would not fit"
            )
    yield SECTION.pack(section.expert, section.col0, num_cols, 0)
    for _, matrix, _, _ in matrices:
        yield code_bytes(matrix)
    for _, matrix, _, _ in matrices:
        if matrix.has_scales:
            yield scale_bytes(matrix)


def code_bytes(matrix: Quantized) -> bytes:
    """Row-major codes; for fp9 bodies, then signs (bit i % 8 of byte i / 8 for weight i)."""
    codes = np.ascontiguousarray(matrix.codes)
    if codes.dtype.itemsize > 1:
        codes = codes.astype(codes.dtype.newbyteorder("<"), copy=False)
    return codes.tobytes() + (b"" if matrix.signs is None else sign_bytes(matrix))


def sign_bytes(matrix: Quantized) -> bytes:
    assert matrix.signs is not None
    return np.packbits(matrix.signs.reshape(-1), bitorder="little").tobytes()


def scale_bytes(matrix: Quantized) -> bytes:
    assert matrix.scales is not None
    return np.ascontiguousarray(matrix.scales).astype("<f4", copy=False).tobytes()


def chunk_digest(chunk: bytes) -> str:
    """BLAKE2b-256 of a logical chunk, hex."""
    return hashlib.blake2b(chunk, digest_size=32).hexdigest()
