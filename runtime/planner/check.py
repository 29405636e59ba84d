"""Checks a plan against the shape it was made for, by counting; shares no code with the planner.

Run in every planner test, and on every plan that is read from a disk.
"""

from __future__ import annotations

from collections import defaultdict

from duckfleet.inventory.plan import FORMATS, MAX_PARTS, Section, ShardPlan

from .shape import ModelShape


def check(plan: ShardPlan, shape: ModelShape, *, even: bool = True) -> list[str]:
    """What is wrong with the plan, a sentence each; empty when it is sound.

    `even` also asks that no rank's total differs from another's by more than one unit of 16 columns.
    """
    return [*_head(plan, shape), *_chunks(plan), *_coverage(plan, shape), *_holders(plan), *_balance(plan, even)]


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
    for i, c in enumerate(plan.chunks):
        if not (0 <= c.layer < plan.num_layers and 0 <= c.slice < plan.tp and 0 <= c.part < plan.parts_per_slice):
            wrong.append(f"chunk {i} is outside the plan: layer {c.layer}, slice {c.slice}, part {c.part}")
        if not c.sections:
            wrong.append(f"chunk {i} is empty")
        experts = [s.expert for s in c.sections]
        if experts != sorted(set(experts)):
            wrong.append(f"chunk {i}: its experts do not ascend")
        if any(s.num_cols <= 0 or s.num_cols % 16 or s.col0 % 16 for s in c.sections):
            wrong.append(f"chunk {i} is not made of units of 16 columns")
        expected = _bytes(c.sections, plan.hidden, plan.format)
        if c.num_bytes != expected:
            wrong.append(f"chunk {i} says {c.num_bytes} bytes, its content makes {expected}")
    return wrong


def _bytes(sections: tuple[Section, ...], hidden: int, format: str) -> int:
    total = 64
    for s in sections:
        tile_cols = len({col // 128 for col in range(s.col0, s.col0 + s.num_cols)})
        scales = 4 * tile_cols * len(range(0, hidden, 128))
        weights = s.num_cols * hidden
        per_matrix = {
            "f32": weights * 4,
            "bf16": weights * 2,
            "e4m3": weights + scales,
            "fp9": weights * 9 // 8 + scales,
        }
        total += 16 + 3 * per_matrix[format]
    return total


def _coverage(plan: ShardPlan, shape: ModelShape) -> list[str]:
    """Every column of every expert exactly once, slices and parts in the order of the columns."""
    wrong = []
    pieces = defaultdict(list)
    for c in plan.chunks:
        for s in c.sections:
            pieces[c.layer, s.expert].append((c.slice, c.part, s.col0, s.num_cols))
    for layer, ffn in enumerate(shape.layers):
        for expert, num_cols in ffn.experts:
            expected = 0
            for _, _, col0, cols in sorted(pieces.pop((layer, expert), [])):
                if col0 != expected:
                    wrong.append(f"layer {layer} expert {expert}: columns from {expected} to {col0} are amiss")
                expected = col0 + cols
            padded = (num_cols + 15) // 16 * 16
            if expected != padded:
                wrong.append(f"layer {layer} expert {expert}: columns end at {expected}, not {padded}")
    wrong += [f"layer {layer} has no expert {expert}" for layer, expert in pieces]
    return wrong


def _holders(plan: ShardPlan) -> list[str]:
    wrong = []
    if len(plan.holders) != plan.tp:
        wrong.append(f"{len(plan.holders)} holders for tp {plan.tp}")
    for rank, held in enumerate(plan.holders):
        if list(held) != sorted(set(held)) or any(not 0 <= i < len(plan.chunks) for i in held):
            wrong.append(f"rank {rank} holds chunks twice, out of order or that do not exist")
            continue
        missing = {i for i, c in enumerate(plan.chunks) if c.slice == rank} - set(held)
        if missing:
            wrong.append(f"rank {rank} lacks chunks {sorted(missing)[:5]} of its own slice")
    return wrong


def _balance(plan: ShardPlan, even: bool) -> list[str]:
    cols = [0] * plan.tp
    for c in plan.chunks:
        if 0 <= c.slice < plan.tp:
            cols[c.slice] += sum(s.num_cols for s in c.sections)
    if even and cols and max(cols) - min(cols) > 16:
        return [f"slices differ by more than a unit: from {min(cols)} to {max(cols)} columns"]
    return []
