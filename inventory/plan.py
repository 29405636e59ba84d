"""Frozen records of a shard plan: which logical chunks make up the model, and which rank holds them."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("f32", "bf16", "e4m3", "fp9")  # index = format id on the wire and in chunks
UNIT_COLUMNS = 16
MAX_PARTS = 8


@dataclass(frozen=True, slots=True)
class Section:
    """The columns [col0, col0 + num_cols) of one expert's intermediate dimension."""

    expert: int
    col0: int
    num_cols: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One logical chunk (docs/formats.md): sections of one part of one slice of one layer.

    `digest` is the BLAKE2b-256 of the logical content, hex; empty in a plan made before the weights were read.
    """

    layer: int
    slice: int
    part: int
    sections: tuple[Section, ...]
    num_bytes: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Every chunk of a model cut for `tp` ranks. `holders[h]` are indices into `chunks`, canonical order.

    The first `tp` holders are the ranks: rank r holds slice r and, with replicas, parts of others. Holder tp + i is
    the roster's spare i. A part, (layer, slice, part), is held whole or not at all. Canonical order of chunks:
    (layer, slice, part, first expert).
    """

    generation: int
    model: str
    model_digest: str  # hex, 64 characters
    format: str
    hidden: int
    num_layers: int
    tp: int
    parts_per_slice: int
    chunks: tuple[Chunk, ...]
    holders: tuple[tuple[int, ...], ...]

    @property
    def num_spares(self) -> int:
        return len(self.holders) - self.tp
