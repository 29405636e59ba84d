"""A duck that answers with what is no answer: the client's error is typed and names the duck."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duckfleet.runtime.control import ControlClient, ProtocolVersionMismatch, ProtocolViolation
from duckfleet.runtime.wire import VERSION, ControlHeader, ControlType, HelloReply, IdentityReply


def frame(kind: ControlType, payload: bytes, request_id: int = 0, version: int = VERSION) -> bytes:
    header = ControlHeader(version=version, type=kind, request_id=request_id, length=len(payload))
    return header.pack() + payload


HELLO_REPLY = frame(ControlType.HELLO_REPLY, bytes(HelloReply.num_bytes()))


@contextmanager
def impostor(answers: list[bytes]) -> Iterator[int]:
    """A port that answers each frame (headers without a payload, and one hello) with the next of `answers`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def play() -> None:
            connection, _ = listener.accept()
            with connection:
                for answer in answers:
                    connection.recv(4096)
                    connection.sendall(answer)
                with contextlib.suppress(ConnectionResetError):
                    connection.recv(4096)  # until the client closes

        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


IDENTITY = IdentityReply.num_bytes()


@pytest.mark.parametrize(
    "answer",
    [
        frame(ControlType.IDENTITY_REPLY, b"", 1),
        frame(ControlType.IDENTITY_REPLY, bytes(IDENTITY - 1), 1),
        frame(ControlType.IDENTITY_REPLY, bytes(IDENTITY + 1), 1),
        frame(ControlType.ERROR, b"", 1),
        frame(ControlType.ERROR, b"\xff", 1),
        frame(ControlType.OK, b"", 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4,
    ],
    ids=["empty", "short", "long", "no error", "short error", "another type", "http"],
)
def test_an_answer_that_cannot_be_read_names_the_duck(answer: bytes) -> None:
    with (
        impostor([HELLO_REPLY, answer]) as port,
        ControlClient("127.0.0.1", port, None, 10.0, name="ann") as client,
        pytest.raises(ProtocolViolation, match="ann"),
    ):
        client.identity()


def test_another_version_says_what_to_do() -> None:
    hello = frame(ControlType.HELLO_REPLY, bytes(HelloReply.num_bytes()), version=VERSION + 1)
    with impostor([hello]) as port, pytest.raises(ProtocolVersionMismatch, match=r"ann.*new image.*update the host"):
        ControlClient("127.0.0.1", port, None, 10.0, name="ann")
