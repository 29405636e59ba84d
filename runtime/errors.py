"""Errors of the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from duckfleet.inventory.errors import DuckfleetError, MachineError


class DuckLost(MachineError):
    """One or more ducks did not answer within the deadline; `ducks` has their names."""

    def __init__(self, message: str, ducks: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ducks = tuple(ducks)


class FabricClosed(DuckfleetError):
    """The fabric was closed while, or before, a forward was asked of it."""


class IdentityMismatch(MachineError):
    """Host and duck disagree about what is served; subclasses name the field."""
