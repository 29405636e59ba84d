"""Both ends of a connection between two ducks in plain Python, written from docs/wire.md: for ducks that lie."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from nacl import bindings as sodium

from duckfleet.runtime.control import Ticket
from duckfleet.runtime.wire import (
    ChunkBegin,
    ChunkData,
    ControlHeader,
    ControlType,
    HelloReply,
    PeerHello,
)
from tests.runtime.duckd.duck_process import CONTROL_PORT, random_address
from tests.runtime.exact_read import read_exactly

NAME = b"duckfleet peer v1: NNpsk2 X25519 BLAKE2b secretstream"
Frame = tuple[int, bytes]


class Sealed:
    """The stream after the handshake: frames out and in."""

    def __init__(self, sock: socket.socket, root: bytes, ours: bytes, theirs: bytes) -> None:
        self.sock = sock
        self._push = sodium.crypto_secretstream_xchacha20poly1305_state()
        self._pull = sodium.crypto_secretstream_xchacha20poly1305_state()
        self._pull_key = hashlib.blake2b(theirs, key=root, digest_size=32).digest()
        key = hashlib.blake2b(ours, key=root, digest_size=32).digest()
        self.stream_header = sodium.crypto_secretstream_xchacha20poly1305_init_push(self._push, key)

    def take_header(self, header: bytes) -> None:
        sodium.crypto_secretstream_xchacha20poly1305_init_pull(self._pull, header, self._pull_key)

    def send(self, kind: int, payload: bytes) -> None:
        frame = ControlHeader(type=kind, request_id=1, length=len(payload)).pack() + payload
        sealed = sodium.crypto_secretstream_xchacha20poly1305_push(self._push, frame)
        self.sock.sendall(struct.pack("<I", len(sealed)) + sealed)

    def receive(self) -> Frame:
        (length,) = struct.unpack("<I", read_exactly(self.sock, 4))
        frame, _ = sodium.crypto_secretstream_xchacha20poly1305_pull(self._pull, read_exactly(self.sock, length))
        return ControlHeader.unpack(frame[:16]).type, frame[16:]


def call(address: str, ticket: Ticket) -> Sealed:
    """A connection to a duck that was offered this ticket's chunk. Raises `EOFError` when the duck hangs up."""
    sock = socket.create_connection((address, CONTROL_PORT), timeout=20)
    private = sodium.randombytes(32)
    hello = PeerHello(ticket.number, sodium.crypto_scalarmult_base(private)).pack()
    frame = ControlHeader(type=ControlType.PEER_HELLO, length=len(hello)).pack() + hello
    sock.sendall(frame)
    reply = HelloReply.unpack(read_exactly(sock, 16 + HelloReply.num_bytes())[16:])
    root = _root(ticket, frame, reply.ephemeral, sodium.crypto_scalarmult(private, reply.ephemeral))
    assert reply.confirm == hashlib.blake2b(b"confirm", key=root, digest_size=16).digest()
    stream = Sealed(sock, root, b"host to duck", b"duck to host")
    stream.take_header(reply.stream_header)
    sock.sendall(struct.pack("<I", 24) + stream.stream_header)
    return stream


class Giver:
    """Listens as a duck that holds a ticket's chunk, and answers `ChunkGet` by `answer`. A context manager."""

    def __init__(self, ticket: Ticket, answer: Callable[[Sealed], None]) -> None:
        self.ticket, self.answer = ticket, answer
        self.address = random_address()
        self.asked: list[Frame] = []

    def __enter__(self) -> Giver:
        self._listener = socket.create_server((self.address, CONTROL_PORT))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def stay_silent(self, _stream: Sealed) -> None:
        """Until the test is over."""
        self._done.wait()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            sock, _ = self._listener.accept()
            with sock:
                stream = self._greet(sock)
                self.asked.append(stream.receive())
                self.answer(stream)

    def _greet(self, sock: socket.socket) -> Sealed:
        frame = read_exactly(sock, 16 + PeerHello.num_bytes())
        hello = PeerHello.unpack(frame[16:])
        private = sodium.randombytes(32)
        public = sodium.crypto_scalarmult_base(private)
        root = _root(self.ticket, frame, public, sodium.crypto_scalarmult(private, hello.ephemeral))
        stream = Sealed(sock, root, b"duck to host", b"host to duck")
        confirm = hashlib.blake2b(b"confirm", key=root, digest_size=16).digest()
        reply = HelloReply(1, ephemeral=public, confirm=confirm, stream_header=stream.stream_header).pack()
        sock.sendall(ControlHeader(type=ControlType.HELLO_REPLY, length=len(reply)).pack() + reply)
        stream.take_header(read_exactly(sock, 28)[4:])
        return stream


def sends(frames: Sequence[Frame]) -> Callable[[Sealed], None]:
    """Answers with these frames, then closes."""

    def answer(stream: Sealed) -> None:
        for kind, payload in frames:
            stream.send(kind, payload)

    return answer


def frames_of(chunk: bytes, digest: str, piece_bytes: int = 1 << 18) -> list[Frame]:
    """What an honest duck answers."""
    pieces = range(0, len(chunk), piece_bytes)
    begin = ChunkBegin(bytes.fromhex(digest), len(chunk)).pack()
    data = [(ControlType.CHUNK_DATA, ChunkData(at).pack() + chunk[at : at + piece_bytes]) for at in pieces]
    return [(ControlType.CHUNK_BEGIN, begin), *data, (ControlType.CHUNK_END, b"")]


def _root(ticket: Ticket, hello_frame: bytes, answering: bytes, agreed: bytes) -> bytes:
    transcript = hashlib.blake2b(NAME + hello_frame + answering, digest_size=32).digest()
    return hashlib.blake2b(transcript + agreed, key=ticket.secret, digest_size=64).digest()
