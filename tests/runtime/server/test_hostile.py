"""Connections that mean harm or know no better: each is bounded, and the next good request is answered."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from duckfleet.runtime.server import ServerSettings

MODEL = "tiny-llama"
QUICK = ServerSettings(
    max_connections=8,
    header_timeout_s=0.3,
    body_timeout_s=0.3,
    keep_alive_s=1,
    max_header_bytes=8192,
    write_timeout_s=0.5,
)
GOOD = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def says_x(serve_for_all: Any, script_decoder: Any, byte_level_tokenizer: Any) -> Any:
    decoder = script_decoder("", 0)
    x = byte_level_tokenizer.encode("x")[0]
    decoder.next_token = lambda tokens: x
    return serve_for_all(decoder, settings=QUICK, ctx=4096)


@pytest.fixture
def served(says_x: Any) -> Iterator[Any]:
    says_x.decoder.gate = None
    yield says_x
    until(lambda: not says_x.http._server.server_state.connections, "the connections of the last test are gone")


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that must come; the bound is only there so that a failing test ends."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def connect(served: Any) -> Iterator[socket.socket]:
    with socket.create_connection((served.http.host, served.http.port), timeout=30) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes; a reset is an end as well."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            data += piece
    return data


def still_good(served: Any) -> None:
    answer = served.chat(max_tokens=1)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "x"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def error_of(answer: bytes) -> dict[str, Any]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 200,  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        HEAD + b"content-length: 99999999999999999999999999\r\n\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        HEAD + b"expect: 100-continue\r\ncontent-length: 999999999\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v1/models/%ed%a0%80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 3000 + b"\r\n",
        b"GET /" + b"a" * 20_000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000,
    ],
    ids=lambda data: ascii(data[:40])[2:-1],
)
@pytest.mark.parametrize("then", ["wait", "leave"])
def test_any_bytes(served: Any, data: bytes, then: str, caplog: pytest.LogCaptureFixture) -> None:
    with connect(served) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        if then == "wait":
            answer = read_all(connection)
            assert status_of(answer) not in (500, 502), answer
            if status_of(answer) == 400:
                assert error_of(answer)["type"] == "invalid_request_error"
    still_good(served)
    assert not [record for record in caplog.records if record.exc_info], "no exception got out"


def test_random_mutations_of_a_good_request(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(20)
    good = HEAD + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(GOOD) + GOOD
    statuses = set()
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randint(1, 20)]
                case 2:
                    data[place:place] = rng.randbytes(rng.randint(1, 5))
                case _:
                    data[place:place] = data[place : place + rng.randint(1, 40)]
        with connect(served) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            statuses.add(status_of(read_all(connection)))
    assert statuses <= {0, 200, 400, 401, 404, 405, 408, 413}, statuses
    assert 400 in statuses
    still_good(served)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_slow_head_is_cut_off_though_bytes_keep_coming(served: Any) -> None:
    with connect(served) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"x: y\r\n")
                time.sleep(0.02)
    still_good(served)


def test_a_slow_second_head_is_cut_off_as_well(served: Any) -> None:
    with connect(served) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"G")
                time.sleep(0.02)
    still_good(served)


def test_a_slow_body_is_a_408(served: Any) -> None:
    with connect(served) as connection:
        connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        answer = b""
        while not answer.endswith(b"}}"):
            answer += connection.recv(65536)
        assert status_of(answer) == 408
        assert error_of(answer)["code"] == "body_timeout"
        with pytest.raises(ConnectionError):  # what still comes is not read for ever
            while True:
                connection.sendall(b"G")
                time.sleep(0.02)
    still_good(served)


def test_half_a_body_and_goodbye(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    with connect(served) as connection:
        connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
    still_good(served)
    assert not [record for record in caplog.records if record.exc_info]


def test_connections_are_bounded_and_come_free(served: Any) -> None:
    with contextlib.ExitStack() as stack:
        # The last must still be there when the next comes: they send a head that has no end, at once.
        held = [stack.enter_context(connect(served)) for _ in range(8)]
        for connection in held:
            connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        with connect(served) as one_more:
            answer = read_all(one_more)
            if answer:
                assert status_of(answer) == 503
                assert error_of(answer)["code"] == "connections"
    until(lambda: not served.http._server.server_state.connections, "the server has seen the others leave")
    still_good(served)


def test_a_client_that_does_not_read_is_cut_off(served: Any) -> None:
    """Its socket fills, then the server's: an echo with log probabilities makes megabytes in a moment."""
    body = {"model": MODEL, "prompt": [9] * 2000, "max_tokens": 1, "n": 64, "stream": True, "logprobs": 5, "echo": True}
    request = json.dumps(body).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((served.http.host, served.http.port))
        head = HEAD.replace(b"/chat", b"") + b"content-length: %d\r\n\r\n" % len(request)
        connection.sendall(head + request)
        until(lambda: served.http._serving.in_flight, "the request is served")
        until(lambda: not served.http._serving.in_flight, "the client is given up")
    still_good(served)


def test_pipelined_requests_are_answered_in_order(served: Any) -> None:
    one = HEAD + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD
    last = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(GOOD) + GOOD
    with connect(served) as connection:
        connection.sendall(one + one + last)
        assert read_all(connection).count(b"HTTP/1.1 200 OK") == 3


def test_a_client_that_pipelines_and_leaves_is_seen(served: Any) -> None:
    gate = served.decoder.gate = threading.Semaphore(0)
    one = HEAD + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD
    with connect(served) as connection:
        connection.sendall(one)
        until(lambda: served.engine.stats().num_active, "the first request is served")
        connection.sendall(one)
        time.sleep(0.05)
    until(lambda: not served.http._serving.in_flight, "the server has seen it leave")
    gate.release(1_000)
    still_good(served)


def test_a_flood_of_pipelined_requests_is_cut_off(served: Any) -> None:
    gate = served.decoder.gate = threading.Semaphore(0)
    one = HEAD + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD
    with connect(served) as connection, pytest.raises(ConnectionError):
        connection.sendall(one)
        for _ in range(100_000):
            connection.sendall(one)
    gate.release(1_000_000)
    still_good(served)


def test_many_clients_at_once(served: Any) -> None:
    """More than may be connected: each gets its whole answer or a plain refusal, and nothing stays behind."""
    outcomes: list[str] = []

    def client(i: int) -> None:
        try:
            answer = served.chat(max_tokens=i % 7 + 1)
            if answer.status_code == 200:
                assert answer.json()["choices"][0]["message"]["content"] == "x" * (i % 7 + 1)
            outcomes.append(str(answer.status_code))
        except httpx.TransportError:
            outcomes.append("refused")

    threads = [threading.Thread(target=client, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"200", "503", "429", "refused"}
    assert outcomes.count("200") >= 8
    stats = served.engine.stats()
    assert (stats.num_active, stats.num_waiting) == (0, 0)
    still_good(served)
