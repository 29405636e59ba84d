"""Blocking client of one duck's control plane."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from duckfleet.runtime.wire import (
    MAX_CONTROL_PAYLOAD,
    ChunkBegin,
    ChunkData,
    ChunkDrop,
    ChunkFetch,
    ChunkOffer,
    ControlType,
    FleetKeys,
    IdentityReply,
    ProbeRequest,
    ShutdownRequest,
    WireFormatError,
)
from duckfleet.runtime.wire.constants import (
    CHUNK_HELD,
    MAX_HAVE,
    PROBE_MEASURE,
    PROBE_MEMORY,
    PROBE_SUSTAINED,
    SHUTDOWN_DROP_STORE,
)

from .connection import ControlConnection
from .errors import ProtocolViolation
from .records import Assignment, Identity, SessionConfig, Ticket

_PIECE_BYTES = MAX_CONTROL_PAYLOAD - 4096
MEASURE_TIMEOUT_S = 30.0
_QUICK_PROBE_TIMEOUT_S = 10.0
_CHUNK_END_S = 20.0  # and the time to hash and pack the chunk, on a duck that has better things to do
_CHUNK_END_BYTES_PER_S = 4e6
_KEEP_TIMEOUT_S = 30.0  # to give back tens of gigabytes

Progress = Callable[[int], None]  # bytes sent since the last call


class ControlClient:
    """One duck. Every method raises a `MachineError` that names the duck; refusals have types of their own.

    `timeout_s` bounds each exchange. `keys` None speaks to a duck started with --no-auth.
    """

    def __init__(
        self, address: str, port: int, keys: FleetKeys | None, timeout_s: float = 5.0, *, name: str = ""
    ) -> None:
        self._timeout_s = timeout_s
        self._duck = name or f"{address}:{port}"
        self._connection = ControlConnection(address, port, keys, timeout_s, self._duck)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def identity(self) -> Identity:
        """Version, assignment, session, memory."""
        payload = self._request(ControlType.IDENTITY, b"", ControlType.IDENTITY_REPLY)
        try:
            return Identity.from_wire(IdentityReply.unpack(payload))
        except WireFormatError as error:
            raise ProtocolViolation(f"duck {self._duck} sent a malformed identity: {error}") from error

    def have(self, digests: Sequence[str]) -> list[bool]:
        """Which chunks the duck holds."""
        held: list[bool] = []
        for start in range(0, len(digests), MAX_HAVE):
            some = digests[start : start + MAX_HAVE]
            payload = self._request(ControlType.HAVE, b"".join(map(bytes.fromhex, some)), ControlType.HAVE_REPLY)
            if len(payload) != len(some):
                raise ProtocolViolation(f"duck {self._duck} answered for {len(payload)} chunks instead of {len(some)}")
            held.extend(byte == 1 for byte in payload)
        return held

    def put_chunk(self, digest: str, data: bytes | bytearray | memoryview, progress: Progress | None = None) -> None:
        """Send one logical chunk; returns when the duck has verified, packed and kept it. Held already: a no-op."""
        view = memoryview(data).cast("B")
        begin = ChunkBegin(bytes.fromhex(digest), len(view)).pack()
        if self._request(ControlType.CHUNK_BEGIN, begin, ControlType.OK) == CHUNK_HELD:
            if progress is not None:
                progress(len(view))
            return
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            self._connection.send(ControlType.CHUNK_DATA, (ChunkData(start).pack(), piece), max(self._timeout_s, 10.0))
            if progress is not None:
                progress(len(piece))
        self._request(
            ControlType.CHUNK_END,
            b"",
            ControlType.OK,
            self._timeout_s + _CHUNK_END_S + len(view) / _CHUNK_END_BYTES_PER_S,
        )

    def offer_chunk(self, ticket: Ticket, lifetime_s: int = 60) -> None:
        """Let whoever has the ticket get its chunk from this duck, once and within so long."""
        offer = ChunkOffer(ticket.number, ticket.secret, bytes.fromhex(ticket.digest), lifetime_s)
        self._request(ControlType.CHUNK_OFFER, offer.pack(), ControlType.OK)

    def fetch_chunk(
        self, ticket: Ticket, address: str, port: int, *, silence_s: float = 10.0, limit_s: float = 60.0
    ) -> None:
        """Have the duck fetch the ticket's chunk from the one at `address`, to which it was offered.

        Returns when it is verified and kept; held already: a no-op. The duck gives up on a peer that is silent for
        `silence_s`, and after `limit_s`. Raises `PeerFailed` when the chunk did not come.
        """
        fetch = ChunkFetch(
            ticket=ticket.number,
            secret=ticket.secret,
            digest=bytes.fromhex(ticket.digest),
            address=ipaddress.IPv4Address(address).packed,
            port=port,
            silence_ms=round(1000 * silence_s),
            limit_ms=round(1000 * limit_s),
        )
        self._request(ControlType.CHUNK_FETCH, fetch.pack(), ControlType.OK, self._timeout_s + _CHUNK_END_S + limit_s)

    def drop_chunk(self, digest: str) -> None:
        """Forget a chunk. Raises `ChunkInUse` when it is assigned."""
        self._request(ControlType.CHUNK_DROP, ChunkDrop(bytes.fromhex(digest)).pack(), ControlType.OK)

    def keep_only(self, digests: Sequence[str]) -> None:
        """Forget every other chunk, and an assignment that has one of those (with its session): their memory is free.

        At most `MAX_ASSIGN` digests.
        """
        payload = b"".join(map(bytes.fromhex, digests))
        self._request(ControlType.CHUNK_KEEP, payload, ControlType.OK, max(self._timeout_s, _KEEP_TIMEOUT_S))

    def assign(self, assignment: Assignment) -> None:
        """Make held chunks the duck's shard. Ends a running session when the assignment is a different one."""
        self._request(ControlType.ASSIGN, assignment.to_wire(), ControlType.OK)

    def configure(self, config: SessionConfig) -> None:
        """Start a session on the assigned shard. Raises a subclass of `IdentityMismatch` for what does not agree."""
        self._request(ControlType.CONFIGURE, config.to_wire(), ControlType.OK)

    def stats(self) -> dict[str, Any]:
        """Counters and times since duckd's start (docs/wire.md lists them)."""
        return self._json(self._request(ControlType.STATS, b"", ControlType.STATS_REPLY))

    def probe(
        self,
        *,
        measure: bool = True,
        memory_s: int = 0,
        sustained_s: int = 0,
        measure_timeout_s: float = MEASURE_TIMEOUT_S,
    ) -> dict[str, Any]:
        """What the box is; `measure` includes bandwidth and frequency and takes part of a second.

        `memory_s` tests free memory for so long, `sustained_s` keeps all cores busy for so long to see what frequency
        they hold, and for so long again with the kernels; where both are given they last equally long. What is measured
        beside that may take `measure_timeout_s`: an emulated duck on a busy machine needs many times what a box does.
        """
        seconds = max(memory_s, sustained_s)
        flags = (measure or sustained_s > 0) * PROBE_MEASURE
        flags |= (memory_s > 0) * PROBE_MEMORY | (sustained_s > 0) * PROBE_SUSTAINED
        timeout_s = max(self._timeout_s, measure_timeout_s if flags else _QUICK_PROBE_TIMEOUT_S)
        timeout_s += 1.5 * ((memory_s > 0) + 2 * (sustained_s > 0)) * seconds
        request = ProbeRequest(flags, seconds).pack()
        return self._json(self._request(ControlType.PROBE, request, ControlType.PROBE_REPLY, timeout_s))

    def shutdown(self, *, drop_store: bool = False) -> None:
        """End the daemon; `drop_store` removes its kept chunks as well."""
        request = ShutdownRequest(SHUTDOWN_DROP_STORE if drop_store else 0).pack()
        self._request(ControlType.SHUTDOWN, request, ControlType.OK)

    def _request(self, kind: ControlType, payload: bytes, wanted: ControlType, timeout_s: float | None = None) -> bytes:
        answer, body = self._connection.request(kind, payload, timeout_s or self._timeout_s)
        if answer != wanted:
            raise ProtocolViolation(f"duck {self._duck} answered {kind.name} with {answer.name}")
        return body

    def _json(self, payload: bytes) -> dict[str, Any]:
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):  # the latter by a hundred thousand opening brackets
            value = None
        if not isinstance(value, dict):
            raise ProtocolViolation(f"duck {self._duck} sent what is no JSON object")
        return value
