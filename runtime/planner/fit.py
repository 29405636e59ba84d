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


def shortfall(plan: ShardPlan, room_bytes: Mapping[str, int]) -> str:
    """Who has no room for its own slice, as a sentence; empty when all have. Rooms by name: ranks, then spares."""
    taken = held_bytes(plan)[: plan.tp]
    short = [(name, room) for (name, room), own in zip(room_bytes.items(), taken, strict=False) if own > room]
    if not short:
        return ""
    need = f"needs {max(taken) / 2**30:.1f} GiB for weights on each of {plan.tp}"
    others = f" (and {len(short) - 1} more are short)" if len(short) > 1 else ""
    return f"{need}; {short[0][0]} has {short[0][1] / 2**30:.1f}{others}"
