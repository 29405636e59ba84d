"""Running the app: the listening socket, signals, and a shutdown that says what it cut."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from duckfleet.inventory.errors import InternalError, OperatorError
from duckfleet.runtime.server.listener import bounded_http
from duckfleet.runtime.server.logs import log_event
from duckfleet.runtime.server.serving import Serving

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_AFTER_CUT_S = 5  # for the last words of a cut answer to leave
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """How it ended for the requests that were under way when the server was told to stop."""

    finished: tuple[str, ...]  # request ids
    cut: tuple[str, ...]  # request ids

    def __str__(self) -> str:
        text = f"{len(self.finished)} requests under way were finished, {len(self.cut)} were cut"
        return f"{text}: {', '.join(self.cut)}" if self.cut else text


class HttpServer:
    """One app on one address. Listens from the constructor on; serves from `run` or `start` on."""

    def __init__(self, app: FastAPI, host: str = LOOPBACK, port: int = 0) -> None:
        """Port 0 takes a free one. Raises `OperatorError` when the address cannot be had."""
        self._serving = cast(Serving, app.state.serving)
        settings = self._serving.settings
        self._socket = _listen(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        config = uvicorn.Config(
            app,
            http=bounded_http(settings),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nobody in front of it is known, so nobody is believed
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=int(settings.grace_s) + _AFTER_CUT_S,
            h11_max_incomplete_event_size=settings.max_header_bytes,
        )
        self._server = _Uvicorn(config, self._serving)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def run(self) -> ShutdownReport:
        """Serve until SIGINT or SIGTERM (in the main thread) or `stop`.

        The first signal ends the server when the requests under way are finished, or after the grace time; the second
        cuts them at once.
        """
        log_event(log, logging.INFO, "listening", url=self.url, model=self._serving.model_name)
        if not ipaddress.ip_address(self.host).is_loopback and not self._serving.settings.api_keys:
            log_event(log, logging.WARNING, "anybody who can reach this address can use the model", url=self.url)
        self._server.run(sockets=[self._socket])
        report = self._server.report
        level = logging.WARNING if report.cut else logging.INFO
        log_event(log, level, "stopped", finished=len(report.finished), cut=len(report.cut), cut_ids=report.cut or None)
        return report

    def start(self) -> HttpServer:
        """Serve in a thread; returns once requests are answered."""
        self._thread = threading.Thread(target=self.run, name="http", daemon=True)
        self._thread.start()
        if not self._server.is_up.wait(timeout=30):
            raise InternalError("the HTTP server did not come up within 30 s; see its log")
        return self

    def stop(self, *, cut: bool = False) -> ShutdownReport:
        """From another thread: as the first signal does, or as the second with `cut`; waits for the end."""
        self._server.end(cut=cut)
        if self._thread is not None:
            self._thread.join()
        return self._server.report

    def __enter__(self) -> HttpServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(cut=True)


def run(app: FastAPI, host: str = LOOPBACK, port: int = 8000) -> ShutdownReport:
    """Serve an app of `create_app` until a signal. Raises `OperatorError` when the address cannot be had."""
    return HttpServer(app, host, port).run()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, with our way of stopping."""

    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self._serving = serving
        self._cut_now = threading.Event()
        self.is_up = threading.Event()
        self.report = ShutdownReport((), ())

    def end(self, *, cut: bool) -> None:
        self.should_exit = True
        if cut:
            self._cut_now.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        under_way = dict(self._serving.in_flight)
        self._serving.draining = True
        log_event(
            log,
            logging.INFO,
            "shutting down",
            requests_under_way=len(under_way),
            grace_s=self._serving.settings.grace_s,
        )
        cut: set[str] = set()
        cutter = asyncio.create_task(self._cut_after_grace(cut))
        try:
            await super().shutdown(sockets)
        finally:
            cutter.cancel()
            self._cut(cut)  # whatever uvicorn gave up on
            self._serving.close()
        finished = sorted(set(under_way) - cut)
        self.report = ShutdownReport(tuple(finished), tuple(sorted(cut)))

    async def _cut_after_grace(self, cut: set[str]) -> None:
        deadline = asyncio.get_running_loop().time() + self._serving.settings.grace_s
        while asyncio.get_running_loop().time() < deadline and not self._cut_now.is_set():
            await asyncio.sleep(0.05)
        self._cut(cut)

    def _cut(self, cut: set[str]) -> None:
        for request_id, generation in list(self._serving.in_flight.items()):
            if not generation.ended:
                cut.add(request_id)
                generation.cancel("the server is shutting down")

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn's, but the signal is not raised again afterwards: the caller has things to close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.end(cut=self.should_exit)


def require_free(host: str, port: int) -> None:
    """Raises `OperatorError` when a server could not listen there now."""
    _listen(host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise OperatorError(f"port {port} is no port: choose one between 1 and 65535, or 0 for any that is free")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=512)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name at all
        number = getattr(error, "errno", None) or 0  # its own text would repeat the address
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise OperatorError(
            f"cannot listen on {host} port {port}: {reason}; choose another with --port or --host"
        ) from error
