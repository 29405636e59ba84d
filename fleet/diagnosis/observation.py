"""An observation: what one source said at one time, or why it said nothing. Frozen; `unknown` is never good or bad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

NOT_THERE = "was not taken"


class Unreadable(Exception):
    """What a source gave is no answer of its kind; the text says why. Data, not a failure: it becomes `unknown`."""


@dataclass(frozen=True, slots=True)
class Observed(Generic[T_co]):
    """A source's value, or None and the reason in `unknown`."""

    source: str
    at: datetime | None = None
    value: T_co | None = None
    unknown: str = ""

    @classmethod
    def absent(cls, source: str, reason: str = NOT_THERE) -> Observed[T_co]:
        return cls(source, None, None, reason)

    @property
    def was_tried(self) -> bool:
        return self.unknown != NOT_THERE


def observe(source: str, text: str | None, at: datetime | None, parse: Callable[[str], T_co]) -> Observed[T_co]:
    """Parse what a source gave at `at`. No text: not taken. `Unreadable` becomes the reason."""
    if text is None:
        return Observed.absent(source)
    try:
        return Observed(source, at, parse(text))
    except Unreadable as reason:
        return Observed(source, at, None, str(reason))
