"""Cuts a model's FFN layers into logical chunks for `tp` ranks. Pure: a shape and a policy in, a frozen plan out.

Units of 16 columns, in the order of (layer, expert), are dealt to the ranks along one cycle (deal.py) that goes on
from expert to expert and from layer to layer, so remainders rotate and no rank carries them all. Within an expert
a rank's columns are contiguous, ranks in order; its units are dealt to the parts of its slice in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from duckfleet.inventory.plan import FORMATS, MAX_PARTS, Chunk, Section, ShardPlan

from .deal import Deal, deal
from .section_pool import SectionPool
from .shape import FfnShape, ModelShape, units
from .sizes import CHUNK_HEADER_BYTES

MAX_TP = 64
# A chunk is what is sent, checked and sent again as one piece: small enough to retry, large enough to stream.
DEFAULT_MAX_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Piece:
    """A chunk whose layer is not filled in yet, so that layers of equal layout share the work."""

    slice: int
    part: int
    sections: tuple[Section, ...]
    num_bytes: int


def cut(
    shape: ModelShape,
    tp: int,
    parts: int = 1,
    weights: Sequence[float] | None = None,
    format: str = "f32",
    *,
    generation: int = 1,
    max_chunk_bytes: int = DEFAULT_MAX_CHUNK_BYTES,
) -> ShardPlan:
    """The plan of `shape` for `tp` ranks, digests empty; rank r holds slice r and nothing else.

    `weights[r]` is rank r's share in any scale (its bandwidth, say); equal shares where None. A section larger than
    `max_chunk_bytes` makes a chunk of its own. Raises ValueError for parameters out of range.
    """
    if not 1 <= tp <= MAX_TP:
        raise ValueError(f"tp must be 1 to {MAX_TP}, got {tp}")
    if not 1 <= parts <= MAX_PARTS:
        raise ValueError(f"parts of a slice must be 1 to {MAX_PARTS}, got {parts}")
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    if weights is not None and len(weights) != tp:
        raise ValueError(f"{len(weights)} weights for {tp} ranks")
    ranks = deal([1.0] * tp if weights is None else weights)

    layouts: dict[tuple[FfnShape, int, tuple[int, ...]], list[_Piece]] = {}
    sections: dict[FfnShape, SectionPool] = {}
    chunks: list[Chunk] = []
    holders: list[list[int]] = [[] for _ in range(tp)]
    num_dealt = 0
    for layer, ffn in enumerate(shape.layers):
        phases = tuple(ranks.dealt(r, num_dealt) % parts for r in range(tp))
        key = (ffn, num_dealt % ranks.length, phases)
        pieces = layouts.get(key)
        if pieces is None:
            pool = sections.setdefault(ffn, SectionPool(ffn, shape.hidden, format))
            pieces = layouts[key] = _layout(pool, ranks, num_dealt, parts, max_chunk_bytes)
        for piece in pieces:
            holders[piece.slice].append(len(chunks))
            chunks.append(Chunk(layer, piece.slice, piece.part, piece.sections, piece.num_bytes))
        num_dealt += sum(units(cols) for _, cols in ffn.experts)

    return ShardPlan(
        generation=generation,
        model=shape.name,
        model_digest="",
        format=format,
        hidden=shape.hidden,
        num_layers=shape.num_layers,
        tp=tp,
        parts_per_slice=parts,
        chunks=tuple(chunks),
        holders=tuple(map(tuple, holders)),
    )


def _layout(pool: SectionPool, ranks: Deal, num_dealt: int, parts: int, max_chunk_bytes: int) -> list[_Piece]:
    """The chunks of one layer, in canonical order; `num_dealt` units went before it."""
    tp = len(ranks.prefix)
    moments = num_dealt + np.concatenate(([0], np.cumsum(pool.units)))  # [experts + 1]
    cycles, rest = np.divmod(moments, ranks.length)
    prefix = np.array(ranks.prefix, dtype=np.int64)
    dealt = cycles * prefix[:, -1:] + prefix[:, rest]  # [tp, experts + 1]
    # How many of a slice's first units fall to each part, in plain rotation.
    turns = (dealt[:, None, :] + np.arange(parts - 1, -1, -1)[None, :, None]) // parts
    taken = np.diff(turns, axis=2).reshape(tp * parts, -1)  # [slices x parts, experts] units
    first = np.cumsum(taken, axis=0) - taken
    sizes = pool.section_bytes(first, taken)
    pieces: list[_Piece] = []
    for place in range(tp * parts):
        (experts,) = taken[place].nonzero()
        if not experts.size:
            continue
        sections = pool.sections(experts, first[place, experts], taken[place, experts])
        ends = np.cumsum(sizes[place, experts])
        begin = 0
        while begin < len(sections):
            before = int(ends[begin - 1]) if begin else 0
            room = max_chunk_bytes - CHUNK_HEADER_BYTES + before
            end = max(begin + 1, int(np.searchsorted(ends, room, side="right")))
            num_bytes = CHUNK_HEADER_BYTES + int(ends[end - 1]) - before
            pieces.append(_Piece(place // parts, place % parts, tuple(sections[begin:end]), num_bytes))
            begin = end
    return pieces


def fill_digests(plan: ShardPlan, digests: Sequence[str], model_digest: str) -> ShardPlan:
    """The plan with the digest of every chunk (same order as `plan.chunks`) and of the model."""
    if len(digests) != len(plan.chunks):
        raise ValueError(f"{len(digests)} digests for {len(plan.chunks)} chunks")
    chunks = tuple(replace(c, digest=d) for c, d in zip(plan.chunks, digests, strict=True))
    return replace(plan, chunks=chunks, model_digest=model_digest)
