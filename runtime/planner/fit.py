"""Does a plan fit its ducks, and if not, who is short. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from duckfleet.inventory.plan import ShardPlan

from .sizes import packed_chunk_bytes


def packed_bytes(plan: ShardPlan) -> list[int]:
    """Memory that each chunk takes in a duck."""
    counted: dict[int, int] = {}  # layers share sections: each tuple of them is counted once
    for c in plan.chunks:
        if id(c.sections) not in counted:
            counted[id(c.sections)] = packed_chunk_bytes(c.sections, plan.hidden, plan.format)
    return [counted[id(c.sections)] for c in plan.chunks]


def held_bytes(plan: ShardPlan) -> list[int]:
    """Memory that each holder's chunks take: ranks, then spares."""
    packed = packed_bytes(plan)
    return [sum(packed[i] for i in held) for held in plan.holders]


def coverage(plan: ShardPlan) -> list[float]:
    """By rank: how much of its slice others hold as well and can take over at once, 0 to 1."""
    packed = packed_bytes(plan)
    own, covered = [0] * plan.tp, [0] * plan.tp
    for chunk, num_bytes in zip(plan.chunks, packed, strict=True):
        own[chunk.slice] += num_bytes
    for holder, held in enumerate(plan.holders):
        for i in held:
            if plan.chunks[i].slice != holder:
                covered[plan.chunks[i].slice] += packed[i]
    return [have / all_ if all_ else 1.0 for have, all_ in zip(covered, own, strict=True)]


def shortfall(plan: ShardPlan, room_bytes: Mapping[str, int]) -> str:
    """Who has no room for its own slice, as a sentence; empty when all have. Rooms by name: ranks, then spares."""
    taken = held_bytes(plan)[: plan.tp]
    short = [(name, room) for (name, room), own in zip(room_bytes.items(), taken, strict=False) if own > room]
    if not short:
        return ""
    need = f"needs {max(taken) / 2**30:.1f} GiB for weights on each of {plan.tp}"
    name, room = min(short, key=lambda item: item[1])
    others = f" (and {len(short) - 1} more are short)" if len(short) > 1 else ""
    return f"{need}; {name} has {room / 2**30:.1f}{others}"
