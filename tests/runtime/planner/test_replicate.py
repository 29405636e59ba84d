"""Second copies: as much as fits, every slice alike, and never past a duck's room."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckfleet.inventory.plan import FORMATS
from duckfleet.runtime.planner import FfnShape, ModelShape, check, cut, held_bytes, replicate, shortfall

from .test_cut import shapes

PLENTY = 1 << 50
SHAPE = ModelShape("m", 128, (FfnShape(128 * 6), FfnShape(128, 4, 64), FfnShape(128 * 6), FfnShape(128, 4, 64)))


def replicas(plan):
    """(layer, slice, part) -> holders other than the slice's rank."""
    found = {}
    for holder, held in enumerate(plan.holders):
        for c in (plan.chunks[i] for i in held):
            if holder != c.slice:
                found.setdefault((c.layer, c.slice, c.part), set()).add(holder)
    return found


@given(
    shapes,
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(FORMATS),
    st.integers(0, 3),
    st.lists(st.floats(0, 3), min_size=15, max_size=15),
    st.floats(0, 1),
)
@settings(deadline=None)
def test_any_replicated_plan_is_sound_and_fits(shape, tp, parts, format, num_spares, extra, fraction):
    bare = cut(shape, tp, parts, None, format, max_chunk_bytes=100_000)
    own = held_bytes(bare)
    rooms = [have + int(max(own) * more) for have, more in zip([*own, *[0] * num_spares], extra, strict=False)]
    plan = replicate(bare, rooms, fraction=fraction)
    assert check(plan, shape, room_bytes=rooms) == []
    assert plan.num_spares == num_spares
    assert dataclasses.replace(plan, holders=bare.holders) == bare
    assert replicate(plan, rooms, fraction=fraction) == plan
    copied = sum(held_bytes(plan)) - sum(own)
    assert copied <= fraction * sum(own)


@given(shapes, st.integers(2, 12), st.integers(1, 4))
@settings(deadline=None)
def test_with_room_every_part_has_a_second_holder(shape, tp, parts):
    plan = replicate(cut(shape, tp, parts), [PLENTY] * tp)
    assert check(plan, shape) == []
    assert set(replicas(plan)) == {(c.layer, c.slice, c.part) for c in plan.chunks}


def test_the_parts_of_a_slice_go_to_its_neighbours():
    plan = replicate(cut(SHAPE, 6, 4), [PLENTY] * 6)
    for (_, slice_, part), holders in replicas(plan).items():
        assert holders == {(slice_ + 1 + part) % 6}


def test_a_copy_that_does_not_fit_covers_every_slice_alike_and_leaves_room_to_load_the_rest():
    bare = cut(ModelShape("m", 128, (FfnShape(6 * 4 * 16),) * 40), 6, 4)
    own = max(held_bytes(bare))
    plan = replicate(bare, [int(own * 1.5)] * 6)
    covered = Counter(slice_ for _, slice_, _ in replicas(plan))
    assert max(covered.values()) - min(covered.values()) <= 1
    share = min(covered.values()) / 160
    assert 0.3 < share < 0.5
    for held in held_bytes(plan):
        assert int(own * 1.5) - held >= (1 - share) * own / 5 * 0.95


def test_a_spare_takes_what_the_ranks_have_no_room_for():
    bare = cut(SHAPE, 3, 2)
    own = held_bytes(bare)
    plan = replicate(bare, [*own, PLENTY])
    assert check(plan, SHAPE, room_bytes=[*own, PLENTY]) == []
    assert set(plan.holders[3]) == set(range(len(plan.chunks)))


def test_a_duck_with_little_memory_holds_less_for_others():
    bare = cut(SHAPE, 4, 4)
    rooms = [3 * n for n in held_bytes(bare)]
    rooms[2] = held_bytes(bare)[2]
    plan = replicate(bare, rooms)
    assert set(replicas(plan)) == {(c.layer, c.slice, c.part) for c in plan.chunks}
    assert plan.holders[2] == bare.holders[2]


def test_wrong_parameters_are_refused():
    with pytest.raises(ValueError, match="1 rooms for 2 ranks"):
        replicate(cut(SHAPE, 2), [PLENTY])
    with pytest.raises(ValueError, match="0 to 1"):
        replicate(cut(SHAPE, 2), [PLENTY] * 2, fraction=1.5)


# --- the checker itself notices what it is there for -------------------------------------------------------

FULL = replicate(cut(SHAPE, 3, 2), [PLENTY] * 3)


def with_holder(rank, held):
    holders = list(FULL.holders)
    holders[rank] = tuple(sorted(held))
    return dataclasses.replace(FULL, holders=tuple(holders))


@pytest.mark.parametrize(
    ("plan", "rooms", "message"),
    [
        (FULL, [PLENTY, 1, PLENTY], "holder 1 has room for 1 bytes"),
        (FULL, [PLENTY] * 2, "2 rooms for 3 holders"),
        (dataclasses.replace(FULL, holders=(*FULL.holders, (0,))), None, "has 2 replicas"),
        (dataclasses.replace(FULL, holders=FULL.holders[:2]), None, "2 holders for tp 3"),
        (with_holder(0, FULL.holders[0][1:]), None, "rank 0 lacks chunks [0]"),
    ],
)
def test_the_checker_names_the_fault(plan, rooms, message):
    assert any(message in line for line in check(plan, SHAPE, room_bytes=rooms)), check(plan, SHAPE, room_bytes=rooms)


def test_the_checker_sees_a_part_that_is_held_in_pieces():
    shape = ModelShape("m", 128, (FfnShape(64, 9),))
    bare = cut(shape, 2, max_chunk_bytes=1)
    plan = dataclasses.replace(bare, holders=(bare.holders[0], (*bare.holders[1], bare.holders[0][0])))
    plan = dataclasses.replace(plan, holders=tuple(tuple(sorted(h)) for h in plan.holders))
    assert any("has of layer 0, slice 0, part 0 not the chunks" in line for line in check(plan, shape))


def test_who_has_no_room_for_its_own_slice_is_named():
    bare = cut(SHAPE, 3, 2)
    rooms = dict(zip(["a", "b", "c"], held_bytes(bare), strict=True))
    assert shortfall(bare, rooms) == ""
    assert shortfall(bare, {**rooms, "b": 1 << 10, "c": 0}).endswith("on each of 3; c has 0.0 (and 1 more are short)")
