"""Errors of the fleet, typed by who must act."""

from __future__ import annotations

from duckfleet.inventory.errors import MachineError, OperatorError


class DuckUnreachable(MachineError):
    """A duck does not answer on its control port."""


class PowerError(MachineError):
    """A duck's power could not be switched."""


class PowerUnsupported(OperatorError):
    """The duck's power source has no such action."""


class NotGreen(MachineError):
    """The fleet is not in a state to serve; the message lists the ducks that are missing and why."""


class SignatureInvalid(OperatorError):
    """A roster or plan was not signed with this fleet's key."""
