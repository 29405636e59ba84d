"""Turns and bounds, as a random walk against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.runtime.engine.errors import QueueFull
from duckfleet.runtime.engine.scheduler import Scheduler


@given(
    max_active=st.integers(1, 3),
    max_waiting=st.integers(0, 3),
    moves=st.lists(st.sampled_from(["add", "round", "leave_first", "leave_last"]), max_size=40),
)
def test_bounds_and_order(max_active: int, max_waiting: int, moves: list[str]) -> None:
    scheduler: Scheduler[int] = Scheduler(max_active, max_waiting)
    present: list[int] = []
    for number, move in enumerate(moves):
        if move == "add":
            if len(present) < max_active + max_waiting:
                scheduler.add(number)
                present.append(number)
            else:
                with pytest.raises(QueueFull):
                    scheduler.add(number)
        elif move == "round":
            assert scheduler.next_round() == tuple(present[:max_active]), "first come, first admitted"
            assert scheduler.num_active <= max_active
        elif present:
            item = present.pop(0 if move == "leave_first" else -1)
            assert scheduler.remove(item)
            assert not scheduler.remove(item)
        assert scheduler.items == tuple(present)


def test_withdraw_is_for_those_who_wait() -> None:
    scheduler: Scheduler[str] = Scheduler(1, 2)
    scheduler.add("a")
    scheduler.add("b")
    scheduler.next_round()
    assert not scheduler.withdraw("a")
    assert scheduler.withdraw("b")
    assert scheduler.items == ("a",)
