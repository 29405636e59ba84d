"""The HTTP connection of uvicorn, with a bound on everything that a client can stretch."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from duckfleet.runtime.server.api.errors import SERVER, ApiError, invalid
from duckfleet.runtime.server.event_stream import encode_json
from duckfleet.runtime.server.settings import ServerSettings

_TOO_MANY = ApiError(
    503, "The server has as many connections as it may have. Try again later.", SERVER, None, "connections"
)


def bounded_http(settings: ServerSettings) -> type[H11Protocol]:
    """A protocol class for uvicorn.

    uvicorn times idle connections between requests, but neither a head that comes byte by byte nor a client that does
    not read; and a client that sends a second request during its first stops uvicorn from reading, so that nobody
    would see it leave.
    """

    class BoundedHttp(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _early_bytes = 0  # of requests that came before the answer to the last one

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                transport.write(_raw(_TOO_MANY))
                transport.close()
                return
            self._time_head()

        def data_received(self, data: bytes) -> None:
            if self._answering:
                self._early_bytes += len(data)
                if self._early_bytes > settings.max_header_bytes:
                    self.transport.abort()
                    return
            else:
                self._early_bytes = 0
            super().data_received(data)
            if self._answering and self.flow.read_paused:
                self.flow.resume_reading()  # only so can an early end of the connection be seen
            self._time_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._time_head()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head_timer, self._write_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(settings.write_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def send_400_response(self, msg: str) -> None:
            """What came is no HTTP; the answer is made by hand, as the state of the parser may not allow one."""
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_raw(invalid(None, f"This is no usable HTTP/1.1 request: {msg}", "http")))
            self.transport.close()

        @property
        def _answering(self) -> bool:
            """A whole request was read and its answer is under way."""
            cycle: Any = self.cycle
            return cycle is not None and not cycle.more_body and not cycle.response_complete

        def _time_head(self) -> None:
            """From now until a head is whole a timer runs; bytes that come do not set it back."""
            waiting = self.cycle is None or self.cycle.response_complete
            if not waiting and self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
            elif waiting and self._head_timer is None and not self.transport.is_closing():
                limit_s = settings.header_timeout_s + (settings.keep_alive_s if self.cycle is not None else 0)
                self._head_timer = self.loop.call_later(limit_s, self.transport.abort)

    return BoundedHttp


def _raw(error: ApiError) -> bytes:
    body = encode_json(error.body)
    reason = "Service Unavailable" if error.status == 503 else "Bad Request"
    head = (
        f"HTTP/1.1 {error.status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
