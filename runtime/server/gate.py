"""The outermost layer of the app: request ids, keys, the log line, and the last net under every error."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckfleet.runtime.server.api.errors import AUTHENTICATION, SERVER, ApiError, shutting_down
from duckfleet.runtime.server.event_stream import ClientGone, encode_json
from duckfleet.runtime.server.logs import log_event
from duckfleet.runtime.server.serving import RequestRecord, Serving

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health"})  # asked for by what watches the process, which has no key
KNOWN_PATHS = frozenset(
    {"/health", "/metrics", "/openapi.json", "/v1/models", "/v1/chat/completions", "/v1/completions"}
)
_MODEL_PATH = "/v1/models/"


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self._app = app
        self._serving = serving
        self._key_digests = [_digest(key.encode()) for key in serving.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            request_id=f"req-{uuid.uuid4().hex}",
            method=scope["method"],
            path=_known(scope["path"]),
            started_at=time.perf_counter(),
        )
        scope["duckfleet.record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", record.request_id.encode())]}
            await send(message)

        gone = False
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await send_error(refusal, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except ClientGone:
            gone = True
        except Exception as error:
            log.exception("a request failed inside the server")
            record.fields["error"] = f"{type(error).__name__}: {error}"
            if record.status is not None:
                raise
            message = f"This request failed inside the server; its log has more, under {record.request_id}."
            await send_error(ApiError(500, message, SERVER, None, "internal_error"), send_with_id)
        finally:
            self._note(record, scope, gone=gone)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if scope["path"] in OPEN_PATHS:
            return None
        if self._key_digests and not knows_key(scope["headers"], self._key_digests):
            message = "A valid API key is needed: send it in the header 'Authorization: Bearer KEY'."
            return ApiError(401, message, AUTHENTICATION, None, "invalid_api_key")
        if self._serving.draining and scope["method"] == "POST":
            return shutting_down()
        return None

    def _note(self, record: RequestRecord, scope: Scope, *, gone: bool) -> None:
        duration_s = time.perf_counter() - record.started_at
        metrics = self._serving.metrics
        if gone:
            metrics.gone.inc()
        status = "none" if record.status is None else str(record.status)
        method = record.method if record.method in ("GET", "POST", "HEAD", "OPTIONS") else "other"
        metrics.requests.labels(record.path, method, status).inc()
        metrics.request_s.labels(record.path).observe(duration_s)
        quiet = record.path in ("/health", "/metrics") and record.status == 200
        client = scope.get("client")
        log_event(
            log,
            logging.DEBUG if quiet else logging.INFO,
            "request",
            request_id=record.request_id,
            client=client[0] if client else None,
            method=method,
            path=record.path,
            status=record.status,
            duration_s=round(duration_s, 6),
            client_gone=gone or None,
            **record.fields,
        )


def knows_key(headers: Sequence[tuple[bytes, bytes]], key_digests: Sequence[bytes]) -> bool:
    """Whether the one Authorization header bears one of the keys; the time taken tells nothing about any of them."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
    digest = _digest(key.strip())
    matches = [hmac.compare_digest(digest, known) for known in key_digests]
    return any(matches) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _known(path: str) -> str:
    if path in KNOWN_PATHS:
        return path
    return _MODEL_PATH + "{model}" if path.startswith(_MODEL_PATH) else "other"


async def send_error(error: ApiError, send: Send) -> None:
    """Answer with OpenAI's error object, without any framework."""
    body = encode_json(error.body)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})
