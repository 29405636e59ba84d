"""What happens while an answer is under way: clients that leave, full queues, lost ducks, shutdown."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.server import HttpServer, ServerSettings

MODEL = "tiny-llama"


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that must come; the bound is only there so that a failing test ends."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.005)


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, **more}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.fixture
def held(script_decoder: Any, byte_level_tokenizer: Any) -> Any:
    """A decoder that says x for ever and stops before each forward until the test lets it go on."""
    decoder = script_decoder("", 0)
    x = byte_level_tokenizer.encode("x")[0]
    decoder.next_token = lambda tokens: x
    decoder.gate = threading.Semaphore(0)
    yield decoder
    decoder.gate.release(1_000_000)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_client_that_leaves_stops_its_generation_within_one_token(
    serve: Any, held: Any, stream: bool, path: str
) -> None:
    served = serve(held)
    request = {"model": MODEL, "max_tokens": 200, "stream": stream}
    request |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    connection = http.client.HTTPConnection(served.http.host, served.http.port)
    connection.request("POST", path, json.dumps(request), {"content-type": "application/json"})
    held.gate.release(4)
    until(lambda: len(held.fed) == 4, "four forwards")
    connection.close()
    until(lambda: served.http._serving.in_flight == {}, "the server sees that the client is gone")
    held.gate.release(100)
    until(lambda: served.engine.stats().num_cancelled == 1, "the end of the generation")
    assert len(held.fed) <= 5, "only the forward that had begun was finished"
    assert served.engine.stats().num_active == 0
    metrics = served.get("/metrics").text
    assert "duckfleet_http_clients_gone_total 1.0" in metrics
    assert served.chat(max_tokens=2).json()["choices"][0]["message"]["content"] == "xx"


def test_a_client_that_leaves_the_queue_makes_room(serve: Any, held: Any) -> None:
    served = serve(held, max_active=1, max_queue=1)
    connections = []
    for i in range(2):
        connection = http.client.HTTPConnection(served.http.host, served.http.port)
        connection.request("POST", "/v1/chat/completions", json.dumps(body()), {"content-type": "application/json"})
        until(lambda i=i: sum(_places(served)) == i + 1, "the request is queued")
        connections.append(connection)
    assert served.chat().status_code == 429
    connections[1].close()
    until(lambda: _places(served) == (1, 0), "the place in the queue is free")
    connections[0].close()
    held.gate.release(100)
    until(lambda: _places(served) == (0, 0), "all gone")


def _places(served: Any) -> tuple[int, int]:
    stats = served.engine.stats()
    return stats.num_active, stats.num_waiting


def test_a_full_queue_answers_429(serve: Any, held: Any) -> None:
    served = serve(held, max_active=1, max_queue=1)
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(served.chat(max_tokens=2))) for _ in range(2)]
    for i, thread in enumerate(threads):
        thread.start()
        until(lambda i=i: sum(_places(served)) == i + 1, "the request is queued")
    refused = served.chat(max_tokens=2)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"] == {
        "message": "The queue is full: 1 requests are waiting. Try again later.",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }
    with pytest.raises(openai.RateLimitError):
        served.openai().chat.completions.create(**body())
    held.gate.release(100)
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert served.chat(max_tokens=2).status_code == 200


def test_a_second_client_is_served_while_the_first_still_is(serve: Any, held: Any) -> None:
    served = serve(held, max_active=2)
    first, second = [], []
    clients = [
        threading.Thread(target=lambda: first.append(served.chat())),
        threading.Thread(target=lambda: second.append(served.chat(max_tokens=3))),
    ]
    for i, client in enumerate(clients):
        client.start()
        until(lambda i=i: sum(_places(served)) == i + 1, "the request is there")
    held.gate.release(20)
    clients[1].join()
    assert second[0].json()["choices"][0]["message"]["content"] == "xxx"
    assert first == []
    held.gate.release(1000)
    clients[0].join()
    assert first[0].json()["choices"][0]["finish_reason"] == "length"


@pytest.fixture
def losing(script_decoder: Any, byte_level_tokenizer: Any) -> Any:
    """Loses a duck after three tokens."""
    decoder = script_decoder("", 0)
    x = byte_level_tokenizer.encode("x")[0]
    decoder.lost = True

    def next_token(tokens: list[int]) -> int:
        if tokens[-3:] == [x, x, x] and decoder.lost:
            raise DuckLost("duck 127.21.1.103 (rank 2) did not answer within 2 s")
        return x

    decoder.next_token = next_token
    return decoder


def test_a_lost_duck_is_named(serve: Any, losing: Any) -> None:
    served = serve(losing)
    answer = served.chat()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "duck_lost"
    assert answer.json()["error"]["type"] == "server_error"
    assert "duck 127.21.1.103 (rank 2)" in answer.json()["error"]["message"]
    client, said = served.openai(), ""
    with pytest.raises(openai.APIError, match=r"127\.21\.1\.103.*after 3 tokens"):
        for chunk in client.chat.completions.create(**body(stream=True)):
            said += chunk.choices[0].delta.content or ""
    assert said == "xxx", "what came before the loss was sent"
    assert served.get("/health").json()["status"] == "ok"
    losing.lost = False
    assert served.chat(max_tokens=5).json()["choices"][0]["message"]["content"] == "xxxxx"


def test_a_bug_is_a_500_without_its_innards(serve: Any, losing: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(tokens: list[int]) -> int:
        raise KeyError("secret of the server")

    losing.next_token = broken
    answer = serve(losing).chat()
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" in caplog.text


def test_a_silent_stream_says_that_it_lives(serve: Any, held: Any) -> None:
    served = serve(held, settings=ServerSettings(comment_every_s=0.02))
    with httpx.stream("POST", served.url + "/v1/chat/completions", json=body(stream=True, max_tokens=1)) as response:
        lines = response.iter_lines()
        for _ in range(2):
            assert next(line for line in lines if line) == ": still at work"
        held.gate.release(10)
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"


# Shutdown.


def stream_until_end(served: Any, got: list[dict[str, Any]], **more: Any) -> None:
    with httpx.stream(
        "POST", served.url + "/v1/chat/completions", json=body(stream=True, **more), timeout=60
    ) as response:
        got.extend(events(response))


def test_shutdown_finishes_what_is_under_way_and_takes_no_more(serve: Any, held: Any) -> None:
    served = serve(held)
    got: list[dict[str, Any]] = []
    client = threading.Thread(target=stream_until_end, args=(served, got), kwargs={"max_tokens": 3})
    with httpx.Client() as idle:  # a connection that was there before
        assert idle.get(served.url + "/health").status_code == 200
        client.start()
        held.gate.release(2)
        until(lambda: len(held.fed) == 2, "two tokens")
        stopper = threading.Thread(target=served.http.stop)
        stopper.start()
        until(lambda: served.http._serving.draining, "the server was told to stop")
        with pytest.raises(httpx.TransportError):
            idle.post(served.url + "/v1/chat/completions", json=body())
    held.gate.release(10)
    client.join()
    stopper.join()
    assert got[-1]["choices"][0]["finish_reason"] == "length", "it was finished"
    report = served.http._server.report
    assert (len(report.finished), report.cut) == (1, ())


@pytest.mark.parametrize("stream", [True, False])
def test_shutdown_says_what_it_cut(serve: Any, held: Any, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(held, settings=ServerSettings(grace_s=0.2))
    answers: list[Any] = []
    if stream:
        client = threading.Thread(target=stream_until_end, args=(served, answers))
    else:
        client = threading.Thread(target=lambda: answers.append(served.chat()))
    client.start()
    held.gate.release(3)
    until(lambda: len(held.fed) == 3, "three tokens")
    stopper = threading.Thread(target=served.http.stop)
    stopper.start()
    until(lambda: served.http._serving.in_flight and _cut(served), "the grace time is over")
    held.gate.release(10)
    client.join()
    stopper.join()
    if stream:
        assert "the server is shutting down. (after" in answers[-1]["error"]["message"]
        assert answers[-1]["error"]["code"] == "generation_cut"
    else:
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].json()["error"]["message"]
    report = served.http._server.report
    assert len(report.cut) == 1
    assert report.cut[0] in str(report)
    assert any(record.getMessage() == "stopped" and record.fields["cut"] == 1 for record in caplog.records)


def _cut(served: Any) -> bool:
    return all(generation.cancel_reason for generation in served.http._serving.in_flight.values())


def test_signals() -> None:
    """One: no more requests, but the answer goes on. The second: it is cut, and the program goes on to its end."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("standalone.py")), "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with httpx.stream("POST", url + "/v1/chat/completions", json=body(stream=True), timeout=60) as response:
            stream = events(response)
            next(stream)
            process.send_signal(signal.SIGTERM)
            until(lambda: _refuses(url), "the server takes no more connections")
            for _ in range(3):
                assert next(stream)["choices"], "the answer goes on"
            process.send_signal(signal.SIGINT)
            last = list(stream)[-1]
        assert "shutting down" in last["error"]["message"]
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "closed: 0 requests under way were finished, 1 were cut" in out
    logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [line["event"] for line in logged if line["logger"].endswith("serve")] == [
        "listening",
        "shutting down",
        "stopped",
    ]
    request = next(line for line in logged if line["event"] == "request")
    assert request["path"] == "/v1/chat/completions"
    assert request["completion_tokens"] > 3
    assert "Traceback" not in err


def _refuses(url: str) -> bool:
    try:
        httpx.get(url + "/health")
    except httpx.TransportError:
        return True
    return False


def test_an_address_in_use_is_told(serve: Any, script_decoder: Any) -> None:
    served = serve(script_decoder("hi", 1))
    with pytest.raises(
        OperatorError, match=f"cannot listen on 127.0.0.1 port {served.http.port}: Address already in use"
    ):
        HttpServer(_app(served), port=served.http.port)
    with pytest.raises(OperatorError, match=r"cannot listen on nowhere\.invalid"):
        HttpServer(_app(served), host="nowhere.invalid")
    with pytest.raises(OperatorError, match="port 70000"):
        HttpServer(_app(served), port=70000)


def _app(served: Any) -> Any:
    return served.http._server.config.app
