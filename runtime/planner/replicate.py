"""Second copies: which parts a duck holds of its neighbours' slices, and which the spares hold. Pure.

The unit is a part, all chunks of one (layer, slice, part). Part p of slice s goes to rank s + 1 + p, so that the parts
of a lost slice are taken over by as many neighbours: chained declustering, H.-I. Hsiao and D. J. DeWitt, "Chained
Declustering: A New Availability Strategy for Multiprocessor Database Machines" (1990), with a slice cut finer. Where
that rank is full the next one with room takes it, and then a spare. Layers are covered one after another, every slice
alike, so a copy that does not fit whole covers the same share of each duck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from duckfleet.inventory.plan import ShardPlan

from .fit import packed_bytes


def replicate(plan: ShardPlan, room_bytes: Sequence[int], *, fraction: float = 1.0) -> ShardPlan:
    """The plan with replicas: as much of one second copy as there is room for, and at most `fraction` of it.

    `room_bytes` is what each holder has for packed chunks: ranks, then spares. Unless everything is covered, room is
    left to load what is not covered of any one slice, spread over those who would remain. Replicas that the plan had
    are forgotten; the same plan and rooms give the same result. Raises ValueError for fewer rooms than ranks.
    """
    if len(room_bytes) < plan.tp:
        raise ValueError(f"{len(room_bytes)} rooms for {plan.tp} ranks")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"the share of a second copy is 0 to 1, not {fraction}")
    parts = _parts(plan)
    held: list[list[int]] = [[] for _ in room_bytes]
    slice_bytes = [0] * plan.tp
    for (_, slice_, _), (chunks, num_bytes) in parts.items():
        held[slice_].extend(chunks)
        slice_bytes[slice_] += num_bytes
    free = [room - own for room, own in zip(room_bytes, [*slice_bytes, *[0] * len(room_bytes)], strict=False)]
    largest = max((num_bytes for _, num_bytes in parts.values()), default=0)
    share = min(fraction, _share_that_fits(free, plan.tp, slice_bytes, largest))
    kept_back = 0 if share == 1.0 else _to_load(share, max(slice_bytes), len(free)) + largest
    room = [left - kept_back for left in free]
    quota = [share * num_bytes for num_bytes in slice_bytes]
    for (_, slice_, part), (chunks, num_bytes) in parts.items():
        if num_bytes > quota[slice_]:
            continue
        holder = next((h for h in _candidates(slice_, part, plan.tp, len(room)) if room[h] >= num_bytes), None)
        if holder is not None:
            held[holder].extend(chunks)
            room[holder] -= num_bytes
            quota[slice_] -= num_bytes
    return replace(plan, holders=tuple(tuple(sorted(one)) for one in held))


def _parts(plan: ShardPlan) -> dict[tuple[int, int, int], tuple[list[int], int]]:
    """(layer, slice, part) -> its chunks and their packed bytes, by layer, then part, then slice."""
    found: dict[tuple[int, int, int], tuple[list[int], int]] = {}
    packed = packed_bytes(plan)
    numbered = enumerate(plan.chunks)
    for key, group in groupby(numbered, key=lambda item: (item[1].layer, item[1].slice, item[1].part)):
        chunks = [index for index, _ in group]
        found[key] = (chunks, sum(packed[index] for index in chunks))
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])))


def _candidates(slice_: int, part: int, tp: int, num_holders: int) -> list[int]:
    """Ranks from the part's neighbour on, around, but for the slice's own; then spares."""
    others = [(slice_ + 1 + distance) % tp for distance in range(tp - 1)]
    first = part % len(others) if others else 0
    return [*others[first:], *others[:first], *range(tp, num_holders)]


def _share_that_fits(free: Sequence[int], tp: int, slice_bytes: Sequence[int], largest: int) -> float:
    """How much of a second copy fits beside room to load the rest of one slice.

    n holders of which one is lost, free bytes F, slices of s bytes, a share f: F = f s tp + n (1 - f) s / (n - 1).
    """
    n, whole, s = len(free), sum(slice_bytes), max(slice_bytes)
    total_free = sum(max(0, left) for left in free)
    if n < 2 or whole == 0:
        return 0.0
    if total_free >= whole + n * largest:
        return 1.0
    spread = n / (n - 1)
    if tp <= spread:
        return 0.0
    return min(1.0, max(0.0, (total_free - n * largest - spread * s) / (s * (tp - spread))))


def _to_load(share: float, slice_bytes: int, num_holders: int) -> int:
    """Bytes that each of those who remain would load of a lost slice."""
    return int((1 - share) * slice_bytes / max(1, num_holders - 1))
