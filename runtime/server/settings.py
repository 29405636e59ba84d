"""What can be set about the server."""

from __future__ import annotations

from dataclasses import dataclass


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
