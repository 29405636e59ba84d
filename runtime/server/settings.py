"""What can be set about the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duckfleet.inventory.errors import OperatorError


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets for the sampling fields that it leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @staticmethod
    def from_generation_config(config: Mapping[str, Any]) -> SamplingDefaults:
        """What a model's authors recommend in its generation_config.json.

        Raises `OperatorError` for a value that no request could ask for.
        """
        given: dict[str, Any] = {}
        for name, (least, most) in _RANGES.items():
            value = config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise OperatorError(
                    f"generation_config.json has {name} = {value!r}, which is not between {least} and {most}: "
                    "mend or remove it"
                )
            given[name] = int(value) if name == "top_k" else float(value)
        return SamplingDefaults(**given)


_RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds and keys. Every time and size that a client could stretch is bounded here."""

    api_keys: tuple[str, ...] = ()  # none: nobody is asked for one
    max_body_bytes: int = 2 * 1024 * 1024  # a prompt of 128k tokens has about half of that
    max_header_bytes: int = 32 * 1024
    max_connections: int = 512
    header_timeout_s: float = 10.0  # from the connection, or from the end of the last response, to a whole head
    body_timeout_s: float = 30.0  # for a whole body
    write_timeout_s: float = 60.0  # for a client to take what was sent to it
    keep_alive_s: int = 15  # idle between requests
    comment_every_s: float = 15.0  # a stream that is silent says so, so that nobody on the way gives it up
    grace_s: float = 30.0  # for requests under way when the server is told to stop
    sampling: SamplingDefaults = SamplingDefaults()
