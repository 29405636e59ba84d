"""Answers that depend on a client that may go away: server-sent events, and one object after a long wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_COMMENT = b": still at work\n\n"
# Line ends to readers that split as Python does; JSON leaves them as they are.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class ClientGone(Exception):
    """The connection was closed before the answer was whole."""


def encode_json(value: object) -> bytes:
    """Compact UTF-8; a lone surrogate, which has no UTF-8, becomes its JSON escape."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def encode_event(value: object) -> bytes:
    """One server-sent event (WHATWG HTML, section 9.2)."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_LINE_ENDS)
    return b"data: " + text.encode("utf-8", "backslashreplace") + b"\n\n"


async def unless_gone(work: Awaitable[T], receive: Receive) -> T:
    """The result of `work`; when the client goes away first, `work` is cancelled and `ClientGone` raised."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStreamResponse(Response):
    """Sends the events of a generator as they come, and comments while none comes.

    The generator is closed in every case, at once when the client goes away.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], comment_every_s: float, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, whatever happened, even if no event was ever asked for."""
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._comment_every_s = comment_every_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(self._send_all(send), receive)
        finally:
            self._on_end()
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        coming: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(self._events))
                done, _ = await asyncio.wait({coming}, timeout=self._comment_every_s)
                event = coming.result() if done else _COMMENT
                if event is None:
                    break
                if done:
                    coming = None
                await send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _next(events: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(events, None)
