"""One TCP connection to a duck's control plane: deadlines, framing, sealing. The package's only user of sockets."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.wire import (
    CONTROL_MAGIC,
    MAX_CONTROL_PAYLOAD,
    VERSION,
    ControlHeader,
    ControlMode,
    ControlType,
    ErrorReply,
    FleetKeys,
    Hello,
    HelloReply,
    WireFormatError,
)
from duckfleet.runtime.wire.handshake import MAX_SEALED_BYTES, HandshakeFailed, HostHandshake, SealError, SecretStream

from .errors import HostNetworkDown, ProtocolVersionMismatch, ProtocolViolation, error_from

_NO_NETWORK_HERE = (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def _printable(data: bytes) -> str:
    return '"' + "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in data) + '"'


class ControlConnection:
    """Frames to and from one duck. Every failure is a `MachineError` that names it."""

    def __init__(self, address: str, port: int, keys: FleetKeys | None, timeout_s: float, duck: str) -> None:
        self._duck = duck
        self._stream: SecretStream | None = None
        self._next_request_id = 1
        with self._mapped_errors():
            self._socket = socket.create_connection((address, port), timeout=timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._mapped_errors():
                self._greet(keys, time.monotonic() + timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

    def send(self, kind: ControlType, pieces: Sequence[bytes | memoryview], timeout_s: float) -> int:
        """Send one frame, its payload in pieces; returns its request id. Not every frame is answered."""
        request_id = self._next_request_id
        self._next_request_id = request_id % 0xFFFFFFFF + 1
        length = sum(map(len, pieces))
        frame = b"".join((ControlHeader(type=kind, request_id=request_id, length=length).pack(), *pieces))
        with self._mapped_errors():
            self._socket.settimeout(timeout_s)
            if self._stream is not None:
                frame = self._stream.push(frame)
                self._socket.sendall(struct.pack("<I", len(frame)), socket.MSG_MORE)
            self._socket.sendall(frame)
        return request_id

    def request(self, kind: ControlType, payload: bytes, timeout_s: float) -> tuple[ControlType, bytes]:
        """Send a frame and wait for its answer. Raises the duck's refusal as its own type."""
        deadline = time.monotonic() + timeout_s
        request_id = self.send(kind, (payload,), timeout_s)
        with self._mapped_errors():
            header, answer = self._receive(deadline)
            if header.request_id not in (request_id, 0):
                raise ProtocolViolation(
                    f"duck {self._duck} answered request {header.request_id} instead of {request_id}"
                )
            return self._checked(header, answer)

    def _greet(self, keys: FleetKeys | None, deadline: float) -> None:
        if keys is None:
            payload = Hello(ControlMode.PLAIN).pack()
            hello = ControlHeader(type=ControlType.HELLO, length=len(payload)).pack() + payload
        else:
            handshake = HostHandshake(keys)
            hello = handshake.hello
        self._socket.sendall(hello)
        kind, payload = self._checked(*self._receive(deadline))
        if kind != ControlType.HELLO_REPLY:
            raise ProtocolViolation(f"duck {self._duck} answered a hello with {kind.name}")
        reply = HelloReply.unpack(payload)
        if keys is not None:
            self._stream = handshake.finish(reply)
            self._socket.sendall(self._stream.first_bytes)

    def _receive(self, deadline: float) -> tuple[ControlHeader, bytes]:
        if self._stream is None:
            header = self._checked_header(self._read(ControlHeader.num_bytes(), deadline))
            return header, self._read(header.length, deadline)
        (length,) = struct.unpack("<I", self._read(4, deadline))
        if length > MAX_SEALED_BYTES:
            raise ProtocolViolation(f"duck {self._duck} announced a sealed frame of {length} bytes")
        frame = self._stream.open(self._read(length, deadline))
        header = self._checked_header(frame[: ControlHeader.num_bytes()])
        payload = frame[ControlHeader.num_bytes() :]
        if header.length != len(payload):
            raise ProtocolViolation(f"duck {self._duck} sent a frame whose length is not what its header says")
        return header, payload

    def _checked_header(self, data: bytes) -> ControlHeader:
        header = ControlHeader.unpack(data)
        if header.magic != CONTROL_MAGIC:
            raise ProtocolViolation(f"what listens there is no duckd: {self._duck} answered {_printable(data[:8])}")
        if header.version != VERSION:
            raise ProtocolVersionMismatch(
                f"duck {self._duck} speaks protocol version {header.version}, this host {VERSION}: "
                "install the same duckfleet on both (boot the duck from a new image, or update the host)"
            )
        if header.length > MAX_CONTROL_PAYLOAD:
            raise ProtocolViolation(f"duck {self._duck} announced a payload of {header.length} bytes")
        return header

    def _checked(self, header: ControlHeader, payload: bytes) -> tuple[ControlType, bytes]:
        if header.type == ControlType.ERROR:
            error, text = ErrorReply.unpack_prefix(payload)
            raise error_from(error.code, f"duck {self._duck}: {bytes(text).decode(errors='replace')}")
        try:
            return ControlType(header.type), payload
        except ValueError:
            raise ProtocolViolation(f"duck {self._duck} sent a frame of unknown type {header.type}") from None

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while len(view):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            count = self._socket.recv_into(view)
            if count == 0:
                raise DuckLost(f"duck {self._duck} closed the control connection")
            view = view[count:]
        return bytes(data)

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise DuckLost(f"duck {self._duck} did not answer on its control port in time") from error
        except OSError as error:
            if error.errno in _NO_NETWORK_HERE:
                raise HostNetworkDown(
                    f"duck {self._duck} cannot be reached from this host: {error.strerror}; `duckctl doctor` looks at "
                    "its interfaces"
                ) from error
            raise DuckLost(f"duck {self._duck}: control connection failed: {error.strerror or error}") from error
        except WireFormatError as error:
            raise ProtocolViolation(f"duck {self._duck} sent a malformed frame: {error}") from error
        except (HandshakeFailed, SealError) as error:
            raise type(error)(f"duck {self._duck} is not to be trusted: {error}") from error
        except MachineError:
            raise
