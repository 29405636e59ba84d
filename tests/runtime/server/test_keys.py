"""API keys."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.server import create_app
from duckfleet.runtime.server.gate import knows_key

MODEL = "tiny-llama"
GUARDED = [
    "/v1/models",
    f"/v1/models/{MODEL}",
    "/v1/chat/completions",
    "/v1/completions",
    "/metrics",
    "/openapi.json",
    "/x",
]


@pytest.fixture
def guarded(serve: Any, script_decoder: Any) -> Any:
    return serve(script_decoder("hi", 1), api_keys=("first-key", "schlüssel"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-key-"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x-api-key": "first-key"},
    ],
)
def test_without_a_key_nothing_is_told(guarded: Any, headers: dict[str, str]) -> None:
    for path in GUARDED:
        for method in ("GET", "POST"):
            answer = guarded.request(method, path, headers=headers)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_with_a_key(guarded: Any) -> None:
    assert [model.id for model in guarded.openai(api_key="first-key").models.list()] == [MODEL]
    with pytest.raises(openai.AuthenticationError):
        guarded.openai(api_key="other").models.list()
    for key in ("first-key", "schlüssel"):
        headers = {"authorization": b"bearer " + key.encode()}
        assert guarded.get("/metrics", headers=headers).status_code == 200


def test_health_is_open(guarded: Any) -> None:
    assert guarded.get("/health").json()["status"] == "ok"


def test_two_headers_are_none(guarded: Any) -> None:
    headers = [("authorization", "Bearer wrong"), ("authorization", "Bearer first-key")]
    assert guarded.get("/v1/models", headers=headers).status_code == 401


def test_a_server_without_keys_takes_any(served: Any) -> None:
    assert served.get("/v1/models", headers={"authorization": "Bearer whatever"}).status_code == 200


def test_an_empty_key_would_let_anybody_in(served: Any) -> None:
    with pytest.raises(OperatorError, match="API key is empty"):
        create_app(served.engine, MODEL, api_keys=("",))


def test_no_key_known_no_key_fits() -> None:
    assert not knows_key([(b"authorization", b"Bearer x")], [])
