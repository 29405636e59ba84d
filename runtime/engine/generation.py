"""The handle of a submitted request: events come out of it in the client's thread or event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from duckfleet.runtime.engine.errors import GenerationCancelled
from duckfleet.runtime.engine.request import GenerationMetrics, GenerationRequest, TokenEvent


class Generation:
    """Iterate over it, with `for` or `async for`, once, from one place.

    The iteration ends after the last event of the last choice, or raises what ended the request early: `DuckLost` and
    other machine errors, `GenerationCancelled`, `InternalError`. `cancel` may be called from any thread.
    """

    def __init__(self, request: GenerationRequest, on_cancel: Callable[[Generation], None]) -> None:
        self.request = request
        self._on_cancel = on_cancel
        self._changed = threading.Condition()
        self._events: deque[TokenEvent] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._cancel_reason: str | None = None
        self._metrics = GenerationMetrics(prompt_tokens=sum(len(prompt) for prompt in request.prompts))
        self._wake: Callable[[], None] | None = None

    @property
    def metrics(self) -> GenerationMetrics:
        """Up to now; final once the iteration has ended."""
        with self._changed:
            return self._metrics

    @property
    def cancel_reason(self) -> str | None:
        return self._cancel_reason

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._ended

    def cancel(self, reason: str = "cancelled by the client") -> None:
        """End it: no further forward is started for it. Harmless when it has ended."""
        with self._changed:
            if self._ended or self._cancel_reason is not None:
                return
            self._cancel_reason = reason
        self._on_cancel(self)

    def __iter__(self) -> Iterator[TokenEvent]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._ended)
                events, ended = self._take()
            yield from events
            if ended:
                return

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: _call_soon(loop, woken.set)
        while True:
            woken.clear()
            with self._changed:
                events, ended = self._take()
            for event in events:
                yield event
            if ended:
                return
            if not events:
                await woken.wait()

    def _take(self) -> tuple[Sequence[TokenEvent], bool]:
        """All events so far. Raises the error once they are out."""
        events = tuple(self._events)
        self._events.clear()
        if self._ended and self._error is not None and not events:
            raise self._error
        return events, self._ended and self._error is None

    # The engine's side, called from its thread.

    def put(self, events: Sequence[TokenEvent], metrics: GenerationMetrics) -> None:
        self._change(events, metrics, ended=False, error=None)

    def finish(self, metrics: GenerationMetrics) -> None:
        self._change((), metrics, ended=True, error=None)

    def fail(self, error: BaseException, metrics: GenerationMetrics) -> None:
        self._change((), metrics, ended=True, error=error)

    def cut(self, metrics: GenerationMetrics) -> None:
        """End it as cancelled."""
        self.fail(GenerationCancelled(self._cancel_reason or "cancelled"), metrics)

    def _change(
        self, events: Sequence[TokenEvent], metrics: GenerationMetrics, *, ended: bool, error: BaseException | None
    ) -> None:
        with self._changed:
            if self._ended:
                return
            self._events.extend(events)
            self._metrics, self._ended, self._error = metrics, ended, error
            self._changed.notify_all()
            wake = self._wake
        if wake is not None:
            wake()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
        loop.call_soon_threadsafe(callback)
