"""How long-running work of this package tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# (what is being done, bytes done, bytes in all or None while unknown)
Progress: TypeAlias = Callable[[str, int, int | None], None]


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """A Progress that shows nothing."""
