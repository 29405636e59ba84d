"""Chunks of random weights as files, of the size that a large model is cut into."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duckfleet.fp9_kernels import ChunkSection, Quantized, chunk_digest, encode_chunk
from duckfleet.inventory.plan import Section, ShardPlan
from duckfleet.runtime.planner import FfnShape, ModelShape, cut, fill_digests

HIDDEN = 4096
COLUMNS = 1280  # of a rank: 15 MiB in e4m3


def write_random_chunks(folder: Path, tp: int, num_bytes: int, seed: int = 0) -> ShardPlan:
    """A plan of about so many bytes, at least a layer; the file of each chunk is `folder/<digest>`."""
    num_layers = max(1, round(num_bytes / (3 * HIDDEN * COLUMNS * tp)))
    plan = cut(ModelShape("random", HIDDEN, (FfnShape(COLUMNS * tp),) * num_layers), tp, format="e4m3")
    random = np.random.default_rng(seed)
    digests = []
    for chunk in plan.chunks:
        sections = [_section(random, section) for section in chunk.sections]
        data = encode_chunk(chunk.layer, chunk.slice, chunk.part, HIDDEN, COLUMNS * tp, "e4m3", sections)
        digests.append(chunk_digest(data))
        (folder / digests[-1]).write_bytes(data)
    return fill_digests(plan, digests, f"{seed:064x}")


def _section(random: np.random.Generator, section: Section) -> ChunkSection:
    first, cols = section.col0, section.num_cols

    def matrix(rows: int, columns: int, row0: int, col0: int) -> Quantized:
        codes = random.integers(0, 0x7F, (rows, columns), dtype=np.uint8)  # no NaN
        tiles = tuple(-(-(a + n) // 128) - a // 128 for a, n in ((row0, rows), (col0, columns)))
        return Quantized("e4m3", codes, None, np.ones(tiles, np.float32), row0, col0)

    gate, up = (matrix(cols, HIDDEN, first, 0) for _ in range(2))
    return ChunkSection(section.expert, first, gate, up, matrix(HIDDEN, cols, 0, first))
