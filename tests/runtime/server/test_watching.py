"""Health, metrics, logs and the OpenAPI document."""

from __future__ import annotations

import io
import json
import logging
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from duckfleet.runtime.server import ServerSettings
from duckfleet.runtime.server.logs import JsonLines, KeyValue, log_event

MODEL = "tiny-llama"
FABRIC = {
    "transport": "udp",
    "forwards": 30,
    "mean_us": {"prepare": 3.0, "wait": 782.6},
    "drops": {"stale_step": 4, "bad-tag": 1},
    "slowest_duck": "10.21.1.103",
    "ducks": [{"duck": "10.21.1.101", "rank": 0, "resends": 2}, {"duck": "10.21.1.103", "rank": 1, "resends": 0}],
    "domains": [{"domain": "d1", "sent_bytes": 1000, "alive": True}],
    "nothing": None,
}


def metrics_of(served: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = served.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_count_what_happens(serve: Any, script_decoder: Any) -> None:
    served = serve(script_decoder("hello", 0), fabric_stats=lambda: FABRIC)
    assert served.chat(max_tokens=2).status_code == 200
    assert served.chat(temperature=9).status_code == 400
    served.get("/some/where")
    metrics = metrics_of(served)
    chat = ("method", "POST"), ("path", "/v1/chat/completions")
    assert metrics["duckfleet_http_requests_total", (*chat, ("status", "200"))] == 1
    assert metrics["duckfleet_http_requests_total", (*chat, ("status", "400"))] == 1
    assert metrics["duckfleet_http_requests_total", (("method", "GET"), ("path", "other"), ("status", "404"))] == 1
    assert metrics["duckfleet_generations_total", (("outcome", "finished"),)] == 1
    assert metrics["duckfleet_tokens_total", (("kind", "prompt"),)] > 0
    assert metrics["duckfleet_ttft_seconds_count", ()] == 1
    forwards = metrics["duckfleet_forwards_total", ()]
    assert metrics["duckfleet_fabric_seconds_total", (("part", "wait"),)] == pytest.approx(forwards * 3e-6)
    assert metrics["duckfleet_requests_active", ()] == 0
    assert metrics["duckfleet_fabric_forwards", ()] == 30
    assert metrics["duckfleet_fabric_mean_us", (("kind", "wait"),)] == 782.6
    assert metrics["duckfleet_fabric_drops", (("kind", "bad-tag"),)] == 1
    assert metrics["duckfleet_fabric_duck_resends", (("duck", "10.21.1.101"),)] == 2
    assert metrics["duckfleet_fabric_domain_sent_bytes", (("domain", "d1"),)] == 1000
    assert metrics["duckfleet_fabric_info", (("slowest_duck", "10.21.1.103"), ("transport", "udp"))] == 1


def test_a_fabric_that_cannot_be_asked_takes_nothing_else_along(serve: Any, script_decoder: Any) -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("closed")

    metrics = metrics_of(serve(script_decoder("hi", 1), fabric_stats=broken))
    assert metrics["duckfleet_fabric_stats_failures_total", ()] == 1
    assert metrics["duckfleet_requests_active", ()] == 0


def test_health_names_the_ducks_for_want_of_which_a_forward_was_given_up(serve: Any, script_decoder: Any) -> None:
    fabric: dict[str, object] = {"lost_ducks": ["ann", "bob"]}
    served = serve(script_decoder("hi", 1), fabric_stats=lambda: fabric)
    answer = served.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")  # the next forward may well succeed
    assert answer.json()["lost_ducks"] == ["ann", "bob"]
    fabric["lost_ducks"] = []
    assert served.get("/health").json()["status"] == "ok"


def test_an_alias_of_the_model_is_taken_and_answered_by_its_name(serve: Any, script_decoder: Any) -> None:
    served = serve(script_decoder("hi", 1), aliases=("short",))
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    answer = served.post("/v1/chat/completions", json={"model": "short", **body})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == MODEL
    assert served.get("/v1/models/short").json()["id"] == MODEL
    assert served.post("/v1/chat/completions", json={"model": "shorter", **body}).status_code == 404


def test_health(serve: Any, script_decoder: Any) -> None:
    served = serve(script_decoder("hi", 1))
    answer = served.get("/health")
    assert answer.status_code == 200
    assert answer.json() | {"version": ""} == {
        "status": "ok",
        "model": MODEL,
        "version": "",
        "requests_active": 0,
        "requests_waiting": 0,
    }
    served.engine.close()
    answer = served.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "failed")
    refused = served.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_closed")


def logged_request(caplog: pytest.LogCaptureFixture, request_id: str) -> dict[str, Any]:
    """The log line of a request; the server may write it a moment after the client has the answer."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for record in caplog.records:
            if record.getMessage() == "request" and record.fields["request_id"] == request_id:
                return record.fields
        time.sleep(0.01)
    raise AssertionError(f"request {request_id} was never logged")


def test_a_request_is_one_line_without_its_text(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "duckfleet")
    answer = served.chat("my secret", max_tokens=2, user="ann\nroot", metadata={"run": "7"})
    fields = logged_request(caplog, answer.headers["x-request-id"])
    assert fields["request_id"] == answer.headers["x-request-id"]
    assert (fields["method"], fields["path"], fields["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (fields["user"], fields["metadata"], fields["client"]) == ("ann\nroot", {"run": "7"}, "127.0.0.1")
    assert fields["completion_tokens"] in (1, 2)
    assert fields["ttft_s"] > 0
    for formatter in (JsonLines(), KeyValue()):
        lines = [formatter.format(record) for record in caplog.records]
        assert not any("secret" in line or "\n" in line for line in lines)
        assert any("req-" in line for line in lines)
    refused = served.chat(temperature=9)
    fields = logged_request(caplog, refused.headers["x-request-id"])
    assert "temperature" in fields["error"]


def test_the_forms_of_a_log_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.Logger("duckfleet.test")
    logger.addHandler(handler)
    handler.setFormatter(JsonLines())
    log_event(logger, logging.WARNING, "duck lost", duck="10.21.1.3", waited_s=2.5, nothing=None)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "duckfleet.test",
        "event": "duck lost",
        "duck": "10.21.1.3",
        "waited_s": 2.5,
    }
    stream.truncate(0), stream.seek(0)
    handler.setFormatter(KeyValue())
    log_event(logger, logging.INFO, "duck lost", duck="10.21.1.3", why='a "cable"\nor so', waited_s=2.5)
    assert (
        stream.getvalue().partition(" ")[2]
        == 'INFO duck lost duck=10.21.1.3 why="a \\"cable\\"\\nor so" waited_s=2.5\n'
    )


def test_openapi_names_the_bodies(served: Any) -> None:
    document = served.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["ChatRequest"]["additionalProperties"] is False
    assert schemas["ChatRequest"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 2
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["$ref"] == "#/components/schemas/ChatRequest"
    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/models/{name}",
        "/health",
        "/metrics",
    }


def test_the_default_address_is_loopback(served: Any) -> None:
    assert served.http.host == "127.0.0.1"
    assert served.url == f"http://127.0.0.1:{served.http.port}"


def test_ipv6_and_all_addresses(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    from duckfleet.runtime.server import HttpServer, create_app

    caplog.set_level(logging.WARNING, "duckfleet")
    with HttpServer(create_app(served.engine, MODEL), host="::1") as http:
        assert httpx.get(http.url + "/health").status_code == 200
    assert not [record for record in caplog.records if "anybody" in record.getMessage()]
    with HttpServer(create_app(served.engine, MODEL), host="0.0.0.0") as http:
        assert httpx.get(f"http://127.0.0.1:{http.port}/health").status_code == 200
    assert [record for record in caplog.records if "anybody" in record.getMessage()]
    with HttpServer(create_app(served.engine, MODEL, settings=ServerSettings(api_keys=("k",))), host="0.0.0.0"):
        pass
    assert len([record for record in caplog.records if "anybody" in record.getMessage()]) == 1
