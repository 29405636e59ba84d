"""Anything on the control port: counted, answered where there is something to say, and others are served meanwhile."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from duckfleet.runtime.control import ControlClient, DuckRefused, ProtocolVersionMismatch, ProtocolViolation
from duckfleet.runtime.wire import ControlHeader, ControlMode, ControlType, ErrorCode, ErrorReply, Hello
from tests.runtime.duckd.conftest import Served, serve
from tests.runtime.duckd.duck_process import CONTROL_PORT, DATA_PORT, DuckProcess, wait_until
from tests.runtime.duckd.raw_control import connect, exchange

HTTP = b"GET /stats HTTP/1.1\r\nHost: duck\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\n\r\n"
KEYED = Hello(ControlMode.KEYED, ephemeral=b"\x09" + bytes(31)).pack()
PLAIN = Hello(ControlMode.PLAIN).pack()


def frame(kind: int, payload: bytes = b"", **fields: int) -> bytes:
    return ControlHeader(**({"type": kind, "length": len(payload)} | fields)).pack() + payload


def error_code(answer: bytes) -> ErrorCode:
    header = ControlHeader.unpack(answer[:16])
    assert header.type == ControlType.ERROR
    return ErrorCode(ErrorReply.unpack(answer[16:20]).code)


@pytest.mark.parametrize(
    ("data", "counter"),
    [
        (HTTP, "malformed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "malformed"),  # a TLS client hello
        (bytes(4096), "malformed"),
        (frame(ControlType.IDENTITY), "malformed"),
        (frame(ControlType.HELLO, KEYED[:20]), "malformed"),
        (frame(ControlType.HELLO, KEYED, length=0xFFFFFFFF), "malformed"),
        (frame(ControlType.HELLO, b"\x07" + KEYED[1:]), "malformed"),
        (frame(ControlType.HELLO, KEYED, version=2), "wrong_version"),
        (frame(ControlType.HELLO, Hello(ControlMode.KEYED).pack()), "auth_failed"),  # a point of low order
        (frame(ControlType.HELLO, PLAIN), "auth_missing"),
        (frame(ControlType.HELLO, KEYED) + struct.pack("<I", 0xFFFFFFFF), "malformed"),
        (frame(ControlType.HELLO, KEYED) + struct.pack("<I", 24) + bytes(24) + struct.pack("<I", 9), "malformed"),
        (
            frame(ControlType.HELLO, KEYED) + struct.pack("<I", 24) + bytes(24) + struct.pack("<I", 40) + bytes(40),
            "auth_failed",
        ),
    ],
)
def test_counted_by_kind(served: Served, data: bytes, counter: str) -> None:
    exchange(served.duck.address, data)
    with served.duck.control() as control:
        assert control.stats()["control"][counter] == 1
    served.assert_good()


def test_another_version_is_told_so(served: Served) -> None:
    answer = exchange(served.duck.address, frame(ControlType.HELLO, KEYED, version=9))
    assert error_code(answer) == ErrorCode.PROTOCOL_VERSION
    assert b"version 9" in answer and b"install the same duckfleet" in answer
    assert "code=protocol_version" in served.duck.log_text()
    served.assert_good()


@pytest.fixture
def impostor() -> Iterator[tuple[socket.socket, list[bytes]]]:
    """A listener that answers each connection with the bytes it is given, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.recv(65536)
                    sock.sendall(answers[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener, answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_duck_of_another_version(impostor: tuple[socket.socket, list[bytes]]) -> None:
    listener, answers = impostor
    answers.append(frame(ControlType.HELLO_REPLY, bytes(80), version=2))
    with pytest.raises(ProtocolVersionMismatch, match="duck d3 speaks protocol version 2, this host 1"):
        ControlClient(*listener.getsockname(), None, 20, name="d3")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(ControlType.HELLO_REPLY, bytes(10)),
        frame(ControlType.HELLO_REPLY, b"", length=1 << 30),
        frame(ControlType.STATS_REPLY, b"{}"),
        frame(77),
        frame(ControlType.ERROR, b"x"),
    ],
)
def test_a_host_survives_rubbish(impostor: tuple[socket.socket, list[bytes]], answer: bytes) -> None:
    listener, answers = impostor
    answers.append(answer)
    with pytest.raises(ProtocolViolation, match="d3"):
        ControlClient(*listener.getsockname(), None, 20, name="d3")


def test_unknown_error_codes_of_a_newer_duck(impostor: tuple[socket.socket, list[bytes]]) -> None:
    listener, answers = impostor
    answers.append(frame(ControlType.ERROR, ErrorReply(999).pack() + b"something new"))
    with pytest.raises(DuckRefused, match=r"d3: something new \(error 999"):
        ControlClient(*listener.getsockname(), None, 20, name="d3")


def test_http_at_every_port(served: Served) -> None:
    exchange(served.duck.address, HTTP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(HTTP, (served.duck.address, CONTROL_PORT))  # nobody listens there
        sock.sendto(HTTP, (served.duck.address, DATA_PORT))
    with contextlib.suppress(OSError):
        socket.create_connection((served.duck.address, DATA_PORT), timeout=5).close()
    served.assert_good()
    with served.duck.control() as control:
        stats = control.stats()
    assert stats["control"]["malformed"] == 1
    assert stats["data"]["drops"]["too_short"] == 1  # less than a header


def test_connect_and_close(served: Served) -> None:
    for _ in range(200):
        connect(served.duck.address).close()
    served.assert_good()
    wait_until(lambda: closed(served) >= 200)


def closed(served: Served) -> int:
    with served.duck.control() as control:
        count: int = control.stats()["control"]["closed"]
    return count


def test_held_handshakes_do_not_keep_others_out(served: Served) -> None:
    """Far more half-open connections than there are places; the oldest of them have to go, commands are answered."""
    held = [connect(served.duck.address) for _ in range(100)]
    try:
        for i, sock in enumerate(held):
            with contextlib.suppress(OSError):
                sock.sendall(frame(ControlType.HELLO, KEYED)[: 5 + i % 50])
        for _ in range(5):
            with served.duck.control() as control:
                assert control.identity().configured
        served.assert_good()
        with served.duck.control() as control:
            stats = control.stats()["control"]
        assert stats["evicted"] >= 100 - 32
    finally:
        for sock in held:
            sock.close()


def test_a_silent_connection_is_closed(served: Served) -> None:
    with connect(served.duck.address) as silent, connect(served.duck.address) as half:
        half.sendall(frame(ControlType.HELLO, KEYED)[:30])
        served.assert_good()
        assert silent.recv(1) == b""
        assert half.recv(1) == b""
    with served.duck.control() as control:
        assert control.stats()["control"]["timeouts"] == 2


def test_an_unproved_host_is_closed(served: Served) -> None:
    """The handshake alone proves nothing: the first sealed frame must come in time."""
    with connect(served.duck.address) as sock:
        sock.sendall(frame(ControlType.HELLO, KEYED) + struct.pack("<I", 24) + bytes(24))
        answer = b""
        while piece := sock.recv(4096):
            answer += piece
    assert ControlHeader.unpack(answer[:16]).type == ControlType.HELLO_REPLY
    with served.duck.control() as control:
        assert control.stats()["control"]["timeouts"] == 1


PLAIN_FRAMES = [
    ("unknown type", frame(999), ErrorCode.UNKNOWN_TYPE),
    ("type of a reply", frame(ControlType.STATS_REPLY), ErrorCode.UNKNOWN_TYPE),
    ("a second hello", frame(ControlType.HELLO, PLAIN), ErrorCode.UNKNOWN_TYPE),
    ("too large", frame(ControlType.STATS, length=(1 << 20) + 1), ErrorCode.TOO_LARGE),
    ("other version", frame(ControlType.STATS, version=7), ErrorCode.PROTOCOL_VERSION),
    ("no magic", frame(ControlType.STATS, magic=1), ErrorCode.MALFORMED),
    ("identity with payload", frame(ControlType.IDENTITY, b"x"), ErrorCode.MALFORMED),
    ("have of a fraction", frame(ControlType.HAVE, bytes(33)), ErrorCode.MALFORMED),
    ("have of too many", frame(ControlType.HAVE, bytes(32 * 8193)), ErrorCode.TOO_LARGE),
    ("short assign", frame(ControlType.ASSIGN, bytes(20)), ErrorCode.MALFORMED),
    ("assign of 2^32 chunks", frame(ControlType.ASSIGN, b"\xff" * 56), ErrorCode.MALFORMED),
    ("short configure", frame(ControlType.CONFIGURE, bytes(20)), ErrorCode.MALFORMED),
    ("configure of zeros", frame(ControlType.CONFIGURE, bytes(180)), ErrorCode.MALFORMED),
    ("end without begin", frame(ControlType.CHUNK_END), ErrorCode.CHUNK_ORDER),
    ("huge chunk", frame(ControlType.CHUNK_BEGIN, bytes(32) + struct.pack("<Q", 1 << 60)), ErrorCode.CHUNK_SIZE),
    ("short chunk begin", frame(ControlType.CHUNK_BEGIN, bytes(8)), ErrorCode.MALFORMED),
    ("short drop", frame(ControlType.CHUNK_DROP, bytes(8)), ErrorCode.MALFORMED),
    ("keep of a fraction", frame(ControlType.CHUNK_KEEP, bytes(33)), ErrorCode.MALFORMED),
    ("keep of too many", frame(ControlType.CHUNK_KEEP, bytes(32 * 16385)), ErrorCode.TOO_LARGE),
    ("probe without flags", frame(ControlType.PROBE), ErrorCode.MALFORMED),
    ("shutdown without flags", frame(ControlType.SHUTDOWN), ErrorCode.MALFORMED),
]


@pytest.mark.parametrize(("data", "code"), [row[1:] for row in PLAIN_FRAMES], ids=[row[0] for row in PLAIN_FRAMES])
def test_frames_out_of_bounds(open_duck: DuckProcess, data: bytes, code: ErrorCode) -> None:
    answer = exchange(open_duck.address, frame(ControlType.HELLO, PLAIN) + data)
    assert error_code(answer[16 + 80 :]) == code
    with open_duck.control() as control:
        assert not control.identity().configured
        counted = control.stats()["control"]
    assert counted["malformed"] + counted["wrong_version"] + counted["refusals"] == 1
    assert_serves(open_duck)


UPLOADS = [
    ("data before begin", [frame(ControlType.CHUNK_DATA, bytes(16))], ErrorCode.CHUNK_ORDER),
    ("begin twice", ["begin", "begin"], ErrorCode.CHUNK_ORDER),
    ("end too early", ["begin", frame(ControlType.CHUNK_DATA, bytes(8 + 100))], ErrorCode.CHUNK_ORDER),
    ("too much", ["begin", frame(ControlType.CHUNK_DATA, bytes(8 + 1001))], ErrorCode.CHUNK_ORDER),
    (
        "out of order",
        ["begin", frame(ControlType.CHUNK_DATA, struct.pack("<Q", 500) + bytes(500))],
        ErrorCode.CHUNK_ORDER,
    ),
    ("short data", ["begin", frame(ControlType.CHUNK_DATA, b"abc")], ErrorCode.MALFORMED),
    ("wrong digest", ["begin", frame(ControlType.CHUNK_DATA, bytes(8 + 1000))], ErrorCode.CHUNK_DIGEST),
]


@pytest.mark.parametrize(("frames", "code"), [row[1:] for row in UPLOADS], ids=[row[0] for row in UPLOADS])
def test_uploads_out_of_order(open_duck: DuckProcess, frames: list[bytes | str], code: ErrorCode) -> None:
    begin = frame(ControlType.CHUNK_BEGIN, bytes(32) + struct.pack("<Q", 1000))
    data = b"".join(begin if part == "begin" else part for part in frames)  # type: ignore[misc]
    answer = exchange(open_duck.address, frame(ControlType.HELLO, PLAIN) + data + frame(ControlType.CHUNK_END))[96:]
    codes = []
    while answer:
        header = ControlHeader.unpack(answer[:16])
        if header.type == ControlType.ERROR:
            codes.append(ErrorReply.unpack(answer[16:20]).code)
        answer = answer[16 + header.length :]
    assert code in codes
    with open_duck.control() as control:
        assert control.identity().num_chunks == 0
        assert control.stats()["control"]["refusals"] >= 1
    assert_serves(open_duck)


def test_unfinished_uploads_are_given_back(open_duck: DuckProcess) -> None:
    """Announced bytes of connections that went away do not count against the next ones."""
    begin = frame(ControlType.CHUNK_BEGIN, bytes(31) + b"\1" + struct.pack("<Q", 1 << 28))
    for _ in range(12):
        answer = exchange(open_duck.address, frame(ControlType.HELLO, PLAIN) + begin)[96:]
        assert ControlHeader.unpack(answer[:16]).type == ControlType.OK
    with contextlib.ExitStack() as stack:
        answers = []
        for _ in range(5):  # 4 are taken at once, 1 GiB
            sock = stack.enter_context(connect(open_duck.address))
            sock.sendall(frame(ControlType.HELLO, PLAIN) + begin)
            got = b""
            while len(got) < 96 + 16:
                got += sock.recv(4096)
            answers.append(ControlHeader.unpack(got[96:112]).type)
        assert answers == [ControlType.OK] * 4 + [ControlType.ERROR]
    assert_serves(open_duck)


def test_too_many_hosts(open_duck: DuckProcess) -> None:
    clients = [open_duck.control() for _ in range(16)]
    for client in clients:
        client.identity()
    try:
        with open_duck.control() as extra, pytest.raises(DuckRefused, match="all places for connections are taken"):
            extra.identity()
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: answers(open_duck))
    with open_duck.control() as control:
        assert control.stats()["control"]["refused"] >= 1
    assert_serves(open_duck)


def assert_serves(duck: DuckProcess) -> None:
    """Weights, a session and a request: the right bits come back."""
    served = serve(duck)
    served.assert_good()
    served.host.close()


def answers(duck: DuckProcess) -> bool:
    with contextlib.suppress(DuckRefused), duck.control() as control:
        return control.identity().protocol_version == 1
    return False
