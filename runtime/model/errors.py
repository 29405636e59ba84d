"""Errors of finding, fetching and reading models."""

from __future__ import annotations

from duckfleet.inventory.errors import MachineError, OperatorError


class ModelError(OperatorError):
    """The model that was asked for cannot be used as it is."""


class UnknownModel(ModelError):
    """No model of that name, here or in the catalogue."""


class BadSource(ModelError):
    """The source is not written as one, or holds no single model."""


class BadCheckpoint(ModelError):
    """The files are there but are not a checkpoint that we can read whole."""


class UnsupportedModel(ModelError):
    """A model family, or a setting of its config, that the decoder does not have."""


class NoSpace(ModelError):
    """The disk has less free than the model needs."""


class SourceUnreachable(MachineError):
    """A download failed; the message carries what the other side or its client said."""
