"""Plans with copies, made by hand: chained declustering as far as a fraction says, and spares."""

from __future__ import annotations

import dataclasses

from duckfleet.inventory.plan import ShardPlan


def with_copies(plan: ShardPlan, num_parts: int, num_spares: int = 0, on_spares: bool = False) -> ShardPlan:
    """Parts [0, num_parts) of slice s are also held by ranks s+1, s+2, … in turn; spares hold all parts, or none."""
    holders = [set(held) for held in plan.holders] + [set() for _ in range(num_spares)]
    for index, chunk in enumerate(plan.chunks):
        if chunk.part < num_parts and plan.tp > 1:
            holders[(chunk.slice + 1 + chunk.part % (plan.tp - 1)) % plan.tp].add(index)
        if on_spares:
            for spare in holders[plan.tp :]:
                spare.add(index)
    return dataclasses.replace(plan, holders=tuple(tuple(sorted(held)) for held in holders))
