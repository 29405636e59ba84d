"""Who is served next: pure, and free of locks (the engine holds one)."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from duckfleet.runtime.engine.errors import QueueFull

Item = TypeVar("Item")


class Scheduler(Generic[Item]):
    """First come, first admitted; then turn by turn.

    At most `max_active` requests are served at once and get one step each a round (a token, or one chunk of the
    prompt), so a long answer does not hold up a short one. At most `max_waiting` more wait for a place. A round is
    the unit that a batching decoder would run in one forward.
    """

    def __init__(self, max_active: int, max_waiting: int) -> None:
        if max_active < 1 or max_waiting < 0:
            raise ValueError(f"max_active={max_active} must be at least 1, max_waiting={max_waiting} at least 0")
        self._max_active = max_active
        self._max_waiting = max_waiting
        self._active: list[Item] = []
        self._waiting: deque[Item] = deque()

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_items(self) -> int:
        return len(self._active) + len(self._waiting)

    @property
    def items(self) -> tuple[Item, ...]:
        """Everybody, in the order of service."""
        return (*self._active, *self._waiting)

    def add(self, item: Item) -> None:
        """Raises `QueueFull` when neither a place nor a seat in the queue is free."""
        free_places = self._max_active - len(self._active)
        if len(self._waiting) >= self._max_waiting + free_places:
            raise QueueFull(len(self._waiting))
        self._waiting.append(item)

    def next_round(self) -> tuple[Item, ...]:
        """Admit who can be admitted; everybody named gets one step."""
        while self._waiting and len(self._active) < self._max_active:
            self._active.append(self._waiting.popleft())
        return tuple(self._active)

    def remove(self, item: Item) -> bool:
        """Done, failed or gone. False if it was not here."""
        if item in self._active:
            self._active.remove(item)
            return True
        return self.withdraw(item)

    def withdraw(self, item: Item) -> bool:
        """Leave the queue. False if it does not wait there (any more)."""
        if item not in self._waiting:
            return False
        self._waiting.remove(item)
        return True
