"""Base errors of the whole product, typed by who must act."""

from __future__ import annotations


class DuckfleetError(Exception):
    """Any error that is ours to explain."""


class OperatorError(DuckfleetError):
    """The operator's input is wrong: which file, flag or value, and what to do next."""


class MachineError(DuckfleetError):
    """A machine out there does not do its part; the message names the duck."""


class InternalError(DuckfleetError):
    """A bug of ours."""
