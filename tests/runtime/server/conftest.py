"""Real servers on loopback: one over a tiny llama for the whole session, and scripted ones by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from duckfleet.runtime.engine import Engine
from duckfleet.runtime.server import HttpServer, ServerSettings, create_app

MODEL = "tiny-llama"
# One for all tests, as making a client costs more than a request; each request has a connection of its own.
CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    http: HttpServer
    engine: Engine
    decoder: Any

    @property
    def url(self) -> str:
        return self.http.url

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        )

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return CLIENT.request(method, self.url + path, **options)

    def chat(self, text: str = "hello", **body: Any) -> httpx.Response:
        message = {"role": "user", "content": text}
        return self.post("/v1/chat/completions", json={"model": MODEL, "messages": [message], **body})


@pytest.fixture(scope="session")
def served(llama: Any, byte_level_tokenizer: Any) -> Iterator[Served]:
    engine = Engine(llama.decoder, byte_level_tokenizer, ctx=256, max_queue=16)
    with engine, HttpServer(create_app(engine, MODEL)) as http:
        yield Served(http, engine, llama.decoder)


@pytest.fixture
def serve(byte_level_tokenizer: Any) -> Iterator[Callable[..., Served]]:
    """Serve any decoder, with settings and engine options of the test's own."""
    yield from serving(byte_level_tokenizer)


@pytest.fixture(scope="module")
def serve_for_all(byte_level_tokenizer: Any) -> Iterator[Callable[..., Served]]:
    """The same, once for a module."""
    yield from serving(byte_level_tokenizer)


def serving(byte_level_tokenizer: Any) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def make(
            decoder: Any, *, settings: ServerSettings | None = None, tokenizer: Any = None, **options: Any
        ) -> Served:
            app_options = {
                name: options.pop(name)
                for name in ("api_keys", "fabric_stats", "dialect", "aliases")
                if name in options
            }
            engine = Engine(decoder, tokenizer or byte_level_tokenizer, **{"ctx": 256, **options})
            stack.callback(engine.close)
            http = HttpServer(create_app(engine, MODEL, settings=settings, **app_options))
            stack.enter_context(http)
            return Served(http, engine, decoder)

        yield make
