"""How a long job of the runtime says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""(what is being done, done so far, in all or None)."""


def quiet(_what: str, _done: int, _total: int | None) -> None:
    """A `Progress` that shows nothing."""
