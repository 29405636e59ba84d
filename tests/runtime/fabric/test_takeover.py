"""Who takes over what: every part exactly once, by one that holds it, and as evenly as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.runtime.fabric import FailoverPolicy
from duckfleet.runtime.fabric.takeover import NoRoom, PlanParts, choose_places, share_out
from duckfleet.runtime.planner import FfnShape, ModelShape, cut
from tests.runtime.fabric.replicas import with_copies

SHAPE = ModelShape("m", 64, (FfnShape(640), FfnShape(96, num_experts=6, shared_intermediate=64), FfnShape(16)))


@given(st.data(), st.integers(1, 9), st.integers(1, 8), st.integers(0, 2))
def test_each_part_once_and_only_by_a_holder(data: st.DataObject, tp: int, parts: int, num_spares: int) -> None:
    copies = data.draw(st.integers(0, parts))
    plan = with_copies(cut(SHAPE, tp, parts), copies, num_spares, on_spares=data.draw(st.booleans()))
    of = PlanParts.of(plan)
    there = data.draw(st.sets(st.integers(0, tp + num_spares - 1)))
    held = dict(enumerate(of.held))
    shares = share_out(of, held, there)
    assert shares.whole == {rank for rank in there if rank < tp}
    others = {part for part in of.chunks if part[1] not in there}
    assert set(shares.parts) | set(shares.uncovered) == others
    assert not set(shares.parts) & set(shares.uncovered)
    assert all(rank in there and part in held[rank] for part, rank in shares.parts.items())
    assert all(part not in held[rank] for part in shares.uncovered for rank in there)
    assert share_out(of, held, sorted(there)) == shares


def test_one_loss_with_every_part_held_twice_is_covered_and_spread() -> None:
    plan = with_copies(cut(SHAPE, 5, 4), 4)
    of = PlanParts.of(plan)
    shares = share_out(of, dict(enumerate(of.held)), {0, 1, 3, 4})
    assert not shares.uncovered
    takers = [rank for (layer, _, _), rank in shares.parts.items() if layer == 0]
    assert sorted(takers) == [0, 1, 3, 4]


def test_a_holder_of_some_of_a_parts_chunks_does_not_have_the_part() -> None:
    plan = cut(ModelShape("m", 64, (FfnShape(64, num_experts=4),)), 1, 1, max_chunk_bytes=1)
    assert len(plan.chunks) == 4
    of = PlanParts.of(plan)
    assert of.held == (frozenset({(0, 0, 0)}),)
    from dataclasses import replace

    assert PlanParts.of(replace(plan, holders=((0, 1, 2),))).held == (frozenset(),)


@given(st.lists(st.integers(1, 50), max_size=12), st.lists(st.integers(-10, 200), max_size=6), st.integers(0, 6))
def test_places_have_room_and_spares_come_first(sizes: list[int], rooms: list[int], first_spare: int) -> None:
    parts = [(layer, 0, 0) for layer in range(len(sizes))]
    num_bytes = dict(zip(parts, sizes, strict=True))
    room = dict(enumerate(rooms))
    spares = [rank for rank in room if rank >= first_spare]
    places = choose_places(parts, num_bytes, room, spares)
    if isinstance(places, NoRoom):
        assert places.needed_bytes == sum(sizes)
        assert parts
        # Some part did not fit beside the others where it was tried; with ample room everywhere that cannot be.
        assert max(rooms, default=0) < sum(sizes)
        return
    assert sorted(part for some in places.values() for part in some) == parts
    assert all(sum(num_bytes[part] for part in some) <= room[rank] for rank, some in places.items())
    if any(room[rank] >= sum(sizes) for rank in spares):
        assert set(places) <= set(spares)


@pytest.mark.parametrize(("ram_bytes", "reserve"), [(32 << 30, 3 << 29), (1 << 30, 1 << 28)])
def test_a_small_duck_keeps_less_for_itself_and_what_is_said_counts(ram_bytes: int, reserve: int) -> None:
    assert FailoverPolicy().reserve_of(ram_bytes) == reserve
    assert FailoverPolicy(reserve_bytes=7).reserve_of(ram_bytes) == 7
