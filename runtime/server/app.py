"""The FastAPI app: which path does what."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from fastapi import FastAPI, Request
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.responses import Response

from duckfleet.inventory.errors import DuckfleetError, OperatorError
from duckfleet.runtime.dialect import Dialect, ReplyReader
from duckfleet.runtime.engine import Engine
from duckfleet.runtime.server.answers import ChatAnswer, CompletionAnswer
from duckfleet.runtime.server.api.complaints import parse_chat, parse_completion, parse_dialect_chat
from duckfleet.runtime.server.api.dialect_schema import DialectChatRequest
from duckfleet.runtime.server.api.errors import SERVER, ApiError, api_error, invalid
from duckfleet.runtime.server.api.openapi import error_responses, json_body, schemas
from duckfleet.runtime.server.api.responses import Json, ResponseHead
from duckfleet.runtime.server.api.schema import ChatRequest, SamplingFields
from duckfleet.runtime.server.api.translate import (
    chat_generation,
    chat_sampling,
    completion_generation,
    completion_sampling,
)
from duckfleet.runtime.server.body import read_body
from duckfleet.runtime.server.event_stream import DONE, EventStreamResponse, encode_event, encode_json, unless_gone
from duckfleet.runtime.server.gate import Gate
from duckfleet.runtime.server.metrics import FabricStats
from duckfleet.runtime.server.serving import RequestRecord, Serving
from duckfleet.runtime.server.settings import ServerSettings

log = logging.getLogger(__name__)

_POST_ERRORS = (400, 401, 404, 408, 413, 429, 500, 503)


def create_app(
    engine: Engine,
    model_name: str,
    *,
    api_keys: tuple[str, ...] = (),
    fabric_stats: FabricStats | None = None,
    settings: ServerSettings | None = None,
    dialect: Dialect | None = None,
    aliases: tuple[str, ...] = (),
) -> FastAPI:
    """The app over an engine, which stays the caller's to close.

    Requests may name the model by one of its `aliases` too; answers say `model_name`.
    `fabric_stats`: called for each `/metrics`, see `Fabric.stats`. `api_keys` add to those of `settings`. A model
    with a `dialect` is asked in it rather than by a chat template.
    """
    settings = settings or ServerSettings()
    settings = replace(settings, api_keys=(*settings.api_keys, *api_keys))
    if not all(key.strip() for key in settings.api_keys):
        raise OperatorError("an API key is empty: give one with at least one character, or none at all")
    serving = Serving(engine, model_name, settings, fabric_stats, dialect, aliases)
    app = FastAPI(
        title="duckfleet",
        version=_version(),
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.serving = serving
    app.add_middleware(Gate, serving=serving)
    app.add_exception_handler(ApiError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    _add_generation_paths(app, serving)
    _add_other_paths(app, serving)
    _describe(app, serving)
    return app


def _add_generation_paths(app: FastAPI, serving: Serving) -> None:
    chat_request = "ChatRequest" if serving.dialect is None else "DialectChatRequest"

    @app.post(
        "/v1/chat/completions",
        openapi_extra={"requestBody": json_body(chat_request)},
        responses=error_responses(*_POST_ERRORS),
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a chat."""
        body = await read_body(request, serving.settings, parse_dialect_chat if serving.dialect else parse_chat)
        serving.require_model(body.model)
        record = _record(request)
        record.fields.update(stream=bool(body.stream), user=body.user or body.safety_identifier, metadata=body.metadata)
        sampling = chat_sampling(body, serving.settings.sampling)
        prompt = await serving.read_prompt(serving.prompts.chat, body)
        generation = serving.submit(chat_generation(body, sampling, prompt), record, "messages")
        head = _head(serving, "chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion")
        reader = _reader_of(serving, body)
        answer = ChatAnswer(head, generation, serving.engine.token_bytes, _wants_usage(body), reader)
        return await _respond(request, serving, answer, record, stream=bool(body.stream), prompt_param="messages")

    @app.post(
        "/v1/completions",
        openapi_extra={"requestBody": json_body("CompletionRequest")},
        responses=error_responses(*_POST_ERRORS),
    )
    async def completions(request: Request) -> Response:
        """Continue a text."""
        body = await read_body(request, serving.settings, parse_completion)
        serving.require_model(body.model)
        record = _record(request)
        record.fields.update(stream=bool(body.stream), user=body.user)
        sampling = completion_sampling(body, serving.settings.sampling)
        prompts = await serving.read_prompt(serving.prompts.completion, body)
        generation = serving.submit(completion_generation(body, sampling, prompts), record, "prompt")
        head = _head(serving, "cmpl", "text_completion")
        echoes = serving.prompts.texts(body, prompts) if body.echo else ()
        answer = CompletionAnswer(head, generation, serving.engine.token_bytes, _wants_usage(body), echoes)
        return await _respond(request, serving, answer, record, stream=bool(body.stream), prompt_param="prompt")


def _reader_of(serving: Serving, body: ChatRequest) -> Callable[[], ReplyReader] | None:
    dialect = serving.dialect
    if dialect is None or not isinstance(body, DialectChatRequest):
        return None
    return partial(dialect.reader, thinking=body.thinks)


async def _respond(
    request: Request,
    serving: Serving,
    answer: ChatAnswer | CompletionAnswer,
    record: RequestRecord,
    *,
    stream: bool,
    prompt_param: str,
) -> Response:
    """Send the answer in one of its two forms; whatever happens, the generation does not outlive it."""

    def end() -> None:
        serving.ended(answer.generation, record)

    if stream:
        events = _events(serving, answer, record, prompt_param)
        return EventStreamResponse(events, serving.settings.comment_every_s, end)
    try:
        return _json(await unless_gone(answer.whole(), request.receive))
    except DuckfleetError as error:
        record.fields["error"] = str(error)
        raise api_error(error, prompt_param) from error
    finally:
        end()


async def _events(
    serving: Serving, answer: ChatAnswer | CompletionAnswer, record: RequestRecord, prompt_param: str
) -> AsyncGenerator[bytes]:
    """The chunks as events. An error is the last event, and no [DONE] follows it."""
    try:
        async for chunk in answer.chunks():
            yield encode_event(chunk)
        yield DONE
    except Exception as error:
        if not isinstance(error, DuckfleetError):
            log.exception("an answer under way failed inside the server")
        record.fields["error"] = str(error)
        yield encode_event(serving.cut_error(answer.generation, error, prompt_param).body)


def _add_other_paths(app: FastAPI, serving: Serving) -> None:
    created = int(time.time())
    model = {
        "id": serving.model_name,
        "object": "model",
        "created": created,
        "owned_by": "duckfleet",
        "max_model_len": serving.engine.limits.ctx_len,
    }

    @app.get("/v1/models", responses=error_responses(401))
    async def models() -> Response:
        """The served model, as a list of one."""
        return _json({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}", responses=error_responses(401, 404))
    async def one_model(name: str) -> Response:
        """The served model, by name."""
        serving.require_model(name)
        return _json(model)

    @app.get("/health", responses={503: {"description": "Shutting down, or the engine has failed"}})
    async def health() -> Response:
        """Whether a request sent now would be worked on; `degraded`: the last one was given up for want of ducks."""
        stats = serving.engine.stats()
        status = "draining" if serving.draining else "ok" if serving.engine.healthy else "failed"
        lost = serving.lost_ducks()
        body: Json = {
            "status": "degraded" if status == "ok" and lost else status,
            "model": serving.model_name,
            "version": app.version,
            "requests_active": stats.num_active,
            "requests_waiting": stats.num_waiting,
            **({"lost_ducks": lost} if lost else {}),
        }
        return _json(body, 200 if status == "ok" else 503)

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **error_responses(401)})
    async def metrics(request: Request) -> Response:
        """Prometheus metrics."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(serving.metrics.registry), headers={"content-type": content_type})


def _describe(app: FastAPI, serving: Serving) -> None:
    """Put the schemas of the bodies that handlers parse themselves into the OpenAPI document."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        document.setdefault("components", {}).setdefault("schemas", {}).update(
            schemas(serving.model_name, serving.aliases, DialectChatRequest if serving.dialect else ChatRequest)
        )
        return document

    app.openapi = openapi  # type: ignore[method-assign]


async def _answer_error(request: Request, error: Exception) -> Response:
    api = cast(ApiError, error)
    _record(request).fields.setdefault("error", api.message)
    return Response(encode_json(api.body), api.status, api.headers, "application/json")


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Errors of the router: no such path, no such method."""
    http = cast(HTTPException, error)
    path = request.url.path[:200]
    if http.status_code == 404:
        api = invalid(None, f"There is nothing at '{path}'.", "not_found", status=404)
    elif http.status_code == 405:
        api = invalid(None, f"'{path}' does not take {request.method[:20]}.", "method_not_allowed", status=405)
    else:
        api = ApiError(http.status_code, str(http.detail), SERVER)
    response = await _answer_error(request, api)
    response.headers.update(http.headers or {})
    return response


def _json(value: Json, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type="application/json")


def _record(request: Request) -> RequestRecord:
    return cast(RequestRecord, request.scope["duckfleet.record"])


def _head(serving: Serving, prefix: str, object_name: str) -> ResponseHead:
    return ResponseHead(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), serving.model_name, object_name)


def _wants_usage(body: SamplingFields) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _version() -> str:
    try:
        return version("duckfleet")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0"
