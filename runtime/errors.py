"""Errors of the runtime."""

from __future__ import annotations

from duckfleet.inventory.errors import MachineError


class DuckLost(MachineError):
    """A duck did not answer within the deadline."""


class IdentityMismatch(MachineError):
    """Host and duck disagree about what is served; subclasses name the field."""
