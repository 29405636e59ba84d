"""Who computes what while some ducks are missing, and where uncovered parts could be loaded. Pure.

A *part* (layer, slice, part) is the unit that one duck takes over from another: a holder has all its chunks or none.
A rank that is there computes its own slice whole; of a slice whose rank is missing each part goes to a holder that is
there. Ranks from `tp` on are spares. Ties break by rank, so that the same losses always lead to the same shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from duckfleet.inventory.plan import ShardPlan

Part = tuple[int, int, int]
"""(layer, slice, part)"""


@dataclass(frozen=True, slots=True)
class PlanParts:
    """The parts of a plan: their chunks (indices into `plan.chunks`, canonical order), bytes and holders."""

    tp: int
    num_layers: int
    chunks: Mapping[Part, tuple[int, ...]]
    num_bytes: Mapping[Part, int]
    held: tuple[frozenset[Part], ...]  # by rank, spares included

    @classmethod
    def of(cls, plan: ShardPlan) -> PlanParts:
        """A holder that has only some of a part's chunks does not have the part."""
        chunks: dict[Part, list[int]] = defaultdict(list)
        num_bytes: dict[Part, int] = defaultdict(int)
        for index, chunk in enumerate(plan.chunks):
            part = (chunk.layer, chunk.slice, chunk.part)
            chunks[part].append(index)
            num_bytes[part] += chunk.num_bytes
        held = []
        for indices in plan.holders:
            count: dict[Part, int] = defaultdict(int)
            for index in indices:
                chunk = plan.chunks[index]
                count[chunk.layer, chunk.slice, chunk.part] += 1
            held.append(frozenset(part for part, n in count.items() if n == len(chunks[part])))
        frozen = {part: tuple(indices) for part, indices in chunks.items()}
        return cls(plan.tp, plan.num_layers, frozen, dict(num_bytes), tuple(held))

    def held_by_plan(self, rank: int) -> frozenset[Part]:
        """Nothing for a spare that the plan does not know."""
        return self.held[rank] if rank < len(self.held) else frozenset()


@dataclass(frozen=True, slots=True)
class Shares:
    """Who computes what: ranks that do their own slice whole; parts of others' slices, by the rank that does them."""

    whole: frozenset[int]
    parts: Mapping[Part, int]
    uncovered: tuple[Part, ...]  # nobody who is there holds them


def share_out(parts: PlanParts, held: Mapping[int, AbstractSet[Part]], there: Collection[int]) -> Shares:
    """Shares of the ranks that are `there`, given what each holds by now.

    Within a layer each uncovered slice's parts go, largest first, to the holder that has least to read so far.
    """
    whole = frozenset(rank for rank in there if rank < parts.tp)
    wanted: dict[int, list[Part]] = defaultdict(list)
    load: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for part in parts.chunks:
        layer, slice_, _ = part
        if slice_ in whole:
            load[layer][slice_] += parts.num_bytes[part]
        else:
            wanted[layer].append(part)
    given: dict[Part, int] = {}
    uncovered: list[Part] = []
    for layer, missing in wanted.items():
        loads = load[layer]
        for part in sorted(missing, key=lambda p: (-parts.num_bytes[p], p)):
            holders = [rank for rank in there if part in held.get(rank, ())]
            if not holders:
                uncovered.append(part)
                continue
            rank = min(holders, key=lambda r: (loads[r], r))
            given[part] = rank
            loads[rank] += parts.num_bytes[part]
    return Shares(whole, given, tuple(sorted(uncovered)))


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Parts that fit nowhere."""

    needed_bytes: int
    room_bytes: int


def choose_places(
    parts: Sequence[Part], num_bytes: Mapping[Part, int], room: Mapping[int, int], spares: Collection[int]
) -> dict[int, list[Part]] | NoRoom:
    """Where to load `parts`: on spares when those have room for all, else spread evenly over everybody.

    `room` is in bytes, by the ranks that are there.
    """
    of_spares = {rank: room[rank] for rank in spares if rank in room}
    for rooms in (of_spares, room):
        placed = _spread(parts, num_bytes, rooms)
        if placed is not None:
            return placed
    return NoRoom(sum(num_bytes[part] for part in parts), sum(max(0, left) for left in room.values()))


def _spread(
    parts: Sequence[Part], num_bytes: Mapping[Part, int], room: Mapping[int, int]
) -> dict[int, list[Part]] | None:
    """Each part to the rank that was given least so far and has room; in canonical order, so layers spread as well."""
    given: dict[int, list[Part]] = {rank: [] for rank in room}
    load = dict.fromkeys(room, 0)
    for part in sorted(parts):
        size = num_bytes[part]
        fits = [rank for rank in room if load[rank] + size <= room[rank]]
        if not fits:
            return None
        rank = min(fits, key=lambda r: (load[r], r))
        given[rank].append(part)
        load[rank] += size
    return {rank: some for rank, some in given.items() if some}
