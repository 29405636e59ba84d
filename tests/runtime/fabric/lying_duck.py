"""A duck's control plane in plain Python whose answers are given by the test: right, mutated, or cut off."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from nacl.bindings import (
    crypto_scalarmult,
    crypto_scalarmult_base,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)

from duckfleet.runtime.wire import ControlHeader, ControlMode, ControlType, FleetKeys, HelloReply
from duckfleet.runtime.wire.handshake import PROTOCOL_NAME
from tests.runtime.exact_read import read_exactly

HEADER_BYTES = ControlHeader.num_bytes()
Frame = Callable[[ControlHeader, bytes], bytes]  # of a request: the frame that answers it, before it is sealed
Stream = Callable[[bytes], tuple[bytes, bool]]  # of bytes about to be sent: what is sent, and whether all ends with it


class LyingDuck:
    """Serves one connection at a time on `address`. `frame` and `stream` say what is answered; a context manager."""

    def __init__(self, address: str, keys: FleetKeys | None, frame: Frame, stream: Stream) -> None:
        self._keys, self._frame, self._stream = keys, frame, stream
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> LyingDuck:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20.0)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    self._talk(connection)
                except (OSError, EOFError):
                    pass
                except BaseException as error:  # a mistake of ours, told by the test
                    self.failure = error

    def _talk(self, connection: socket.socket) -> None:
        hello = read_exactly(connection, HEADER_BYTES)
        hello += read_exactly(connection, ControlHeader.unpack(hello).length)
        ephemeral = secrets.token_bytes(32)
        push = pull = None
        if self._keys is None:
            reply = HelloReply(ControlMode.PLAIN, bytes(7), bytes(32), bytes(16), bytes(24)).pack()
        else:
            public = crypto_scalarmult_base(ephemeral)
            peer = hello[-32:]
            transcript = hashlib.blake2b(PROTOCOL_NAME + self._keys.public + hello + public, digest_size=32).digest()
            agreed = crypto_scalarmult(ephemeral, peer) + crypto_scalarmult(ephemeral, self._keys.public)
            root = hashlib.blake2b(transcript + agreed, key=self._keys.enrolment, digest_size=64).digest()
            push = crypto_secretstream_xchacha20poly1305_state()
            pull = crypto_secretstream_xchacha20poly1305_state()
            header = crypto_secretstream_xchacha20poly1305_init_push(push, _derive(root, b"duck to host", 32))
            reply = HelloReply(ControlMode.KEYED, bytes(7), public, _derive(root, b"confirm", 16), header).pack()
        frame = ControlHeader(type=ControlType.HELLO_REPLY, length=len(reply)).pack() + reply
        if self._send(connection, frame):
            return
        if pull is not None:
            assert self._keys is not None
            (size,) = struct.unpack("<I", read_exactly(connection, 4))
            key = _derive(root, b"host to duck", 32)
            crypto_secretstream_xchacha20poly1305_init_pull(pull, read_exactly(connection, size), key)
        while True:
            if pull is None:
                header_bytes = read_exactly(connection, HEADER_BYTES)
                payload = read_exactly(connection, ControlHeader.unpack(header_bytes).length)
            else:
                (size,) = struct.unpack("<I", read_exactly(connection, 4))
                opened, _ = crypto_secretstream_xchacha20poly1305_pull(pull, read_exactly(connection, size))
                header_bytes, payload = opened[:HEADER_BYTES], opened[HEADER_BYTES:]
            request = ControlHeader.unpack(header_bytes)
            if request.type == ControlType.CHUNK_DATA:
                continue
            answer = self._frame(request, payload)
            if push is not None:
                answer = crypto_secretstream_xchacha20poly1305_push(push, answer)
                answer = struct.pack("<I", len(answer)) + answer
            if self._send(connection, answer):
                return

    def _send(self, connection: socket.socket, data: bytes) -> bool:
        data, ends = self._stream(data)
        connection.sendall(data)
        if ends:  # all of it is read before the end is seen
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        return ends


def _derive(root: bytes, label: bytes, size: int) -> bytes:
    return hashlib.blake2b(label, key=root, digest_size=size).digest()
