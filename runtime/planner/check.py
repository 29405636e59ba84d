"""Checks a plan against the shape it was made for, by counting; shares no code with the planner.

Run in every planner test, and on every plan that is read from a disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

from duckfleet.inventory.plan import FORMATS, MAX_PARTS, Chunk, Section, ShardPlan

from .shape import FfnShape, ModelShape


def check(
    plan: ShardPlan, shape: ModelShape, *, even: bool = True, room_bytes: Sequence[int] | None = None
) -> list[str]:
    """What is wrong with the plan, a sentence each; empty when it is sound.

    `even` also asks that no rank's slice differs from another's by more than one unit of 16 columns, `room_bytes` that
    no holder (ranks, then spares) takes more for its packed chunks than it has.
    """
    wrong = [*_head(plan, shape), *_chunks(plan), *_coverage(plan, shape), *_holders(plan), *_balance(plan, even)]
    return wrong if room_bytes is None else [*wrong, *_rooms(plan, room_bytes)]


def movement(
    before: ShardPlan | None, ducks_before: Sequence[str], after: ShardPlan, ducks_after: Sequence[str]
) -> dict[str, int]:
    """Logical bytes that each duck of `after` lacks of it, having held its share of `before`. Ducks by name, in the
    order of the plans' holders."""
    had: dict[str, set[object]] = {duck: set() for duck in ducks_after}
    if before is not None:
        for duck, held in zip(ducks_before, before.holders, strict=True):
            had.setdefault(duck, set()).update(_content(before, before.chunks[i]) for i in held)
    return {
        duck: sum(c.num_bytes for c in (after.chunks[i] for i in held) if _content(after, c) not in had[duck])
        for duck, held in zip(ducks_after, after.holders, strict=True)
    }


def _content(plan: ShardPlan, chunk: Chunk) -> object:
    """Equal for chunks that have the same digest, or would have, once the weights of their model are read."""
    return chunk.digest or (plan.model, plan.format, plan.hidden, chunk)


def _head(plan: ShardPlan, shape: ModelShape) -> list[str]:
    wrong = []
    if (plan.hidden, plan.num_layers) != (shape.hidden, len(shape.layers)):
        wrong.append(
            f"plan is for hidden {plan.hidden} and {plan.num_layers} layers, "
            f"the model has {shape.hidden} and {len(shape.layers)}"
        )
    if plan.format not in FORMATS:
        wrong.append(f"unknown format {plan.format!r}")
    if not 1 <= plan.tp <= 64:
        wrong.append(f"tp {plan.tp} is not 1 to 64")
    if not 1 <= plan.parts_per_slice <= MAX_PARTS:
        wrong.append(f"{plan.parts_per_slice} parts a slice is not 1 to {MAX_PARTS}")
    return wrong


def _chunks(plan: ShardPlan) -> list[str]:
    wrong = []
    keys = [(c.layer, c.slice, c.part, c.sections[0].expert if c.sections else -1) for c in plan.chunks]
    if keys != sorted(set(keys)):
        wrong.append("chunks are not in canonical order, or two are the same")
    looked_at: dict[int, tuple[list[str], int]] = {}  # layers share sections: each tuple of them is counted once
    for i, c in enumerate(plan.chunks):
        if not (0 <= c.layer < plan.num_layers and 0 <= c.slice < plan.tp and 0 <= c.part < plan.parts_per_slice):
            wrong.append(f"chunk {i} is outside the plan: layer {c.layer}, slice {c.slice}, part {c.part}")
        if id(c.sections) not in looked_at:
            looked_at[id(c.sections)] = _sections(c.sections), _bytes(c.sections, plan.hidden, plan.format)
        faults, expected = looked_at[id(c.sections)]
        wrong += [f"chunk {i}{fault}" for fault in faults]
        if c.num_bytes != expected:
            wrong.append(f"chunk {i} says {c.num_bytes} bytes, its content makes {expected}")
    return wrong


def _sections(sections: tuple[Section, ...]) -> list[str]:
    faults = [] if sections else [" is empty"]
    experts = [s.expert for s in sections]
    if experts != sorted(set(experts)):
        faults.append(": its experts do not ascend")
    if any(s.num_cols <= 0 or s.num_cols % 16 or s.col0 % 16 for s in sections):
        faults.append(" is not made of units of 16 columns")
    return faults


def _bytes(sections: tuple[Section, ...], hidden: int, format: str) -> int:
    return 64 + sum(_bytes_of(s.col0 % 128, s.num_cols, hidden, format) for s in sections)


@cache
def _bytes_of(first: int, num_cols: int, hidden: int, format: str) -> int:
    """Logical bytes of a section that begins `first` columns into a tile."""
    tile_cols = len({col // 128 for col in range(first, first + num_cols)})
    scales = 4 * tile_cols * len(range(0, hidden, 128))
    weights = num_cols * hidden
    per_matrix = {
        "f32": weights * 4,
        "bf16": weights * 2,
        "e4m3": weights + scales,
        "fp9": weights * 9 // 8 + scales,
    }
    return 16 + 3 * per_matrix[format]


def _coverage(plan: ShardPlan, shape: ModelShape) -> list[str]:
    """Every column of every expert exactly once, slices and parts in the order of the columns."""
    of_layer: dict[int, list[Chunk]] = defaultdict(list)
    for c in plan.chunks:
        of_layer[c.layer].append(c)
    wrong = []
    looked_at: dict[object, list[str]] = {}  # layers of one kind that are laid out alike
    for layer, ffn in enumerate(shape.layers):
        chunks = of_layer.pop(layer, [])
        alike = (ffn, tuple((c.slice, c.part, id(c.sections)) for c in chunks))
        if alike not in looked_at:
            looked_at[alike] = _columns(chunks, ffn)
        wrong += [f"layer {layer} {fault}" for fault in looked_at[alike]]
    return wrong


def _columns(chunks: list[Chunk], ffn: FfnShape) -> list[str]:
    pieces = defaultdict(list)
    for c in chunks:
        for s in c.sections:
            pieces[s.expert].append((c.slice, c.part, s.col0, s.num_cols))
    wrong = []
    for expert, num_cols in ffn.experts:
        expected = 0
        for _, _, col0, cols in sorted(pieces.pop(expert, [])):
            if col0 != expected:
                wrong.append(f"expert {expert}: columns from {expected} to {col0} are amiss")
            expected = col0 + cols
        padded = (num_cols + 15) // 16 * 16
        if expected != padded:
            wrong.append(f"expert {expert}: columns end at {expected}, not {padded}")
    return [*wrong, *(f"has no expert {expert}" for expert in pieces)]


def _holders(plan: ShardPlan) -> list[str]:
    wrong = []
    if len(plan.holders) < plan.tp:
        wrong.append(f"{len(plan.holders)} holders for tp {plan.tp}")
    chunks_of = defaultdict(set)
    for i, c in enumerate(plan.chunks):
        chunks_of[c.layer, c.slice, c.part].add(i)
    copies: dict[tuple[int, int, int], int] = defaultdict(int)
    for holder, held in enumerate(plan.holders):
        who = f"rank {holder}" if holder < plan.tp else f"spare {holder - plan.tp}"
        if list(held) != sorted(set(held)) or any(not 0 <= i < len(plan.chunks) for i in held):
            wrong.append(f"{who} holds chunks twice, out of order or that do not exist")
            continue
        parts: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        for i in held:
            parts[plan.chunks[i].layer, plan.chunks[i].slice, plan.chunks[i].part].add(i)
        for key, found in parts.items():
            if found != chunks_of[key]:
                missing = sorted(chunks_of[key] - found)[:5]
                wrong.append("{} has of layer {}, slice {}, part {} not the".format(who, *key) + f" chunks {missing}")
            copies[key] += holder != key[1]
        missing = sorted(i for key, of in chunks_of.items() if key[1] == holder and key not in parts for i in of)
        if missing:
            wrong.append(f"{who} lacks chunks {missing[:5]} of its own slice")
    for (layer, slice_, part), count in copies.items():
        if count > 1:
            wrong.append(f"layer {layer}, slice {slice_}, part {part} has {count} replicas")
    return wrong


def _rooms(plan: ShardPlan, room_bytes: Sequence[int]) -> list[str]:
    """Holders whose packed chunks, in whole pages, take more than they have."""
    wrong = []
    if len(room_bytes) != len(plan.holders):
        wrong.append(f"{len(room_bytes)} rooms for {len(plan.holders)} holders")
    counted: dict[int, int] = {}
    for c in plan.chunks:
        if id(c.sections) not in counted:
            counted[id(c.sections)] = _packed_bytes(c.sections, plan.hidden, plan.format)
    packed = [counted[id(c.sections)] for c in plan.chunks]
    for holder, (held, room) in enumerate(zip(plan.holders, room_bytes, strict=False)):
        taken = sum(packed[i] for i in held)
        if taken > room:
            wrong.append(f"holder {holder} has room for {room} bytes, its chunks take {taken}")
    return wrong


def _packed_bytes(sections: tuple[Section, ...], hidden: int, format: str) -> int:
    total = (64 + 16 * len(sections) + 63) // 64 * 64
    total += sum(_packed_bytes_of(s.col0 % 128, s.num_cols, hidden, format) for s in sections)
    return (total + 16 + 4095) // 4096 * 4096  # 16: the checksum of a stored chunk


@cache
def _packed_bytes_of(first: int, num_cols: int, hidden: int, format: str) -> int:
    """As docs/formats.md tells the packed form: panels of 16 rows and blocks of 16 columns, scales by group of 3."""
    panels_of_hidden = (hidden + 15) // 16
    units = num_cols // 16
    total = 3 * units * panels_of_hidden * {"f32": 1024, "bf16": 512, "e4m3": 256, "fp9": 288}[format]
    if format in ("e4m3", "fp9"):
        tiles = len({col // 128 for col in range(first, first + num_cols, 16)})
        for groups, along in (((2 * units + 2) // 3, (hidden + 127) // 128), ((panels_of_hidden + 2) // 3, tiles)):
            total += (16 * groups * along + 63) // 64 * 64
    return total


def _balance(plan: ShardPlan, even: bool) -> list[str]:
    cols = [0] * plan.tp
    for c in plan.chunks:
        if 0 <= c.slice < plan.tp:
            cols[c.slice] += sum(s.num_cols for s in c.sections)
    if even and cols and max(cols) - min(cols) > 16:
        return [f"slices differ by more than a unit: from {min(cols)} to {max(cols)} columns"]
    return []
