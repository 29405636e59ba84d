"""Errors of the decoder."""

from __future__ import annotations

from duckfleet.inventory.errors import OperatorError


class UnsupportedConfig(OperatorError):
    """A config asks for something the decoder does not have; the message names the key."""


class ContextFull(OperatorError):
    """A sequence would grow past its KV cache, or a cache past the model's positions or the memory given to it."""
