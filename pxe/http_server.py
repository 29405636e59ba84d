"""The HTTP/1.1 server: sockets and files around `responder`. One thread, one listener a domain."""

from __future__ import annotations

import asyncio
import mmap
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.clients import BootDomain
from duckfleet.pxe.events import BootEvent, Listener
from duckfleet.pxe.responder import MAX_REPORT_BYTES, Request, Responder, Response

SLICE_BYTES = 256 * 1024
BACKLOG = 128
IP_FREEBIND = 15  # Linux, include/uapi/linux/in.h; Python has no name for it
START_TIMEOUT_S = 10
_Receive = Callable[[], Awaitable[dict[str, Any]]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]


class BootHttpServer:
    """Serves a `Responder` on every domain's own address until it is stopped."""

    def __init__(self, responder: Responder, http_port: int, listener: Listener) -> None:
        self._responder = responder
        self._listener = listener
        self._by_address = {domain.host_address: domain for domain in responder.site.domains}
        self._sockets = _listen(responder.site.domains, http_port)
        config = uvicorn.Config(
            self._application,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="boot-http", daemon=True)

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise OperatorError("the boot service's HTTP server did not start; its log says why")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(START_TIMEOUT_S)
        for listening in self._sockets:
            listening.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(self._sockets))

    # -- one request ------------------------------------------------------------------------------------

    async def _application(self, scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        domain = self._by_address.get(scope["server"][0]) or self._responder.site.domains[0]
        request = Request(
            method=scope["method"],
            raw_path=scope["raw_path"].decode("latin-1"),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
            domain=domain,
            peer=scope["client"][0] if scope["client"] else "",
        )
        body = await _body(receive) if request.method == "POST" else b""
        response = await asyncio.to_thread(self._responder.respond, request, body, int(time.time()))
        started = time.monotonic()
        headers = [(name.encode(), value.encode()) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        whole = await self._send_body(request, response, receive, send)
        if response.event:
            kind = response.event if whole or response.event != "file_sent" else "file_aborted"
            self._tell(kind, request, response, time.monotonic() - started)

    async def _send_body(self, request: Request, response: Response, receive: _Receive, send: _Send) -> bool:
        """Whether everything went out to a peer that was still there."""
        if response.path is None or request.method == "HEAD" or response.num_bytes == 0:
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else response.text})
            return True
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            content = await asyncio.to_thread(_map, response.path)
            offset, end = response.first, response.first + response.num_bytes
            while offset < end:
                await asyncio.sleep(0)  # lets `gone` see that the peer went away; then nothing more is sent
                if gone.done():
                    return False
                part = content[offset : min(offset + SLICE_BYTES, end)]
                offset += len(part)
                await send({"type": "http.response.body", "body": part, "more_body": offset < end})
            return True
        finally:
            gone.cancel()

    def _tell(self, kind: str, request: Request, response: Response, took_s: float) -> None:
        client = self._responder.site.by_mac(response.mac) or self._responder.site.by_address(request.peer)
        evidence = {**response.evidence, "path": request.raw_path, "peer": request.peer}
        if response.path is not None:
            evidence["took_s"] = round(took_s, 4)
        self._listener(
            BootEvent(
                time.time(),
                kind,
                response.mac or (client.mac if client else ""),
                client.name if client else "",
                request.domain.name,
                evidence,
            )
        )


def _listen(domains: Sequence[BootDomain], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for domain in domains:
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)  # the address may come up later
            listening.bind((domain.host_address, port))
            listening.listen(BACKLOG)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise OperatorError(
            f"HTTP port {port} on {domain.host_address} cannot be had: {error.strerror}; "
            "is another `duckctl pxe serve` running? (--http-port chooses another)"
        ) from error
    return sockets


async def _body(receive: _Receive) -> bytes:
    """The request's body, a little more than what is taken at most."""
    body = b""
    while len(body) <= MAX_REPORT_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break
    return body


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as handle:
        return mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
