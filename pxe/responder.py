"""What to answer to an HTTP request: method, path and headers in, a response and an event out. No sockets.

Paths: `/duck/MAC/boot.ipxe`, `/duck/MAC/FILE` (a file of what that machine boots), `/duck/MAC/layer/NAME`,
`/duck/MAC/report` (POST), `/loader/FILE`. Never a redirect: no firmware follows one reliably. GETs change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.mac import BadMac, parse_mac
from duckfleet.pxe import ipxe_script
from duckfleet.pxe.boot_files import BootFiles
from duckfleet.pxe.byte_range import Unsatisfiable, parse_range
from duckfleet.pxe.clients import BootClient, BootDomain, BootSite
from duckfleet.pxe.policy import DuckImage, LinuxKernel, LocalDisk, Memtest, Multiboot2, PolicyFile

MAX_REPORT_BYTES = 16_384
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came in; header names in lower case. `domain`: by which of our addresses it came."""

    method: str
    raw_path: str
    headers: Mapping[str, str]
    domain: BootDomain
    peer: str


@dataclass(frozen=True, slots=True)
class Response:
    """Status, headers and either text or a part of a file. `event` is told when the body is out."""

    status: int
    headers: tuple[tuple[str, str], ...]
    text: bytes = b""
    path: Path | None = None
    first: int = 0
    num_bytes: int = 0
    event: str = ""  # kind of the boot event, or none
    mac: str = ""
    evidence: Mapping[str, str | int | float] = field(default_factory=dict)


class Responder:
    """Answers for one site. Policy and images are read at each request: a change takes hold at the next boot."""

    def __init__(self, site: BootSite, policy: PolicyFile, files: BootFiles) -> None:
        self.site = site
        self._policy = policy
        self._files = files

    def respond(self, request: Request, body: bytes, now_s: int) -> Response:
        """The answer to one request. Never raises for what a client sent."""
        parts = [unquote(part) for part in re.split("/+", request.raw_path.partition("?")[0].strip("/"))]
        try:
            match parts:
                case ["duck", mac, "report"]:
                    return self._report(request, mac, body)
                case _ if request.method not in ("GET", "HEAD"):
                    return _refusal(405, "GET and HEAD only", allow="GET, HEAD")
                case ["loader", name]:
                    return self._file(request, "", name, self._files.loader(name))
                case ["duck", mac, "boot.ipxe"]:
                    return self._script(request, mac, now_s)
                case ["duck", mac, "layer", name]:
                    return self._layer(request, mac, name)
                case ["duck", mac, name]:
                    return self._boot_file(request, mac, name)
        except BadMac as error:
            return _refusal(404, str(error))
        except OperatorError as error:
            return _refusal(503, str(error))
        return _refusal(404, "no such file")

    def _client(self, mac: str) -> tuple[str, BootClient | None]:
        canonical = parse_mac(mac)
        return canonical, self.site.by_mac(canonical)

    def _script(self, request: Request, mac: str, now_s: int) -> Response:
        mac, client = self._client(mac)
        if client is None:
            return _text(ipxe_script.unknown_script(mac), "script_sent", mac, {"boots": "nothing: unknown machine"})
        url = f"http://{request.headers.get('host') or request.domain.host_address}/duck/{mac}"
        context = ipxe_script.ScriptContext(client, request.domain, now_s, url)
        choice = self._policy.load().decide(client)
        match choice:
            case DuckImage():
                image = self._files.image(choice)
                script, what = ipxe_script.duck_script(choice, image, context), f"duck image {image.id}"
            case Memtest():
                self._files.memtest("memtest.bin")  # fails here and now if it cannot be had
                script, what = ipxe_script.memtest_script(context), "memtest86+"
            case LocalDisk():
                script, what = ipxe_script.disk_script(context), "local disk"
            case LinuxKernel():
                script, what = ipxe_script.kernel_script(choice, context), f"kernel {choice.kernel.name}"
            case Multiboot2():
                what = f"multiboot2 {choice.kernel.name}"
                script = ipxe_script.multiboot2_script(context, what)
        return _text(script, "script_sent", mac, {"boots": what})

    def _boot_file(self, request: Request, mac: str, name: str) -> Response:
        mac, client = self._client(mac)
        path = None
        if client is not None:
            path = self._files.of_choice(self._policy.load().decide(client), client, request.domain, name)
        return self._file(request, mac, name, path)

    def _layer(self, request: Request, mac: str, name: str) -> Response:
        mac, client = self._client(mac)
        path = None
        if client is not None and isinstance(choice := self._policy.load().decide(client), DuckImage):
            path = self._files.layer(choice, name)
        return self._file(request, mac, f"layer {name}", path)

    def _report(self, request: Request, mac: str, body: bytes) -> Response:
        mac, client = self._client(mac)
        if request.method != "POST":
            return _refusal(405, "POST only", allow="POST")
        if client is None or len(body) > MAX_REPORT_BYTES:
            return _refusal(404 if client is None else 413, "no report is taken here")
        lines = [line.partition("=") for line in body.decode("utf-8", errors="replace").splitlines()]
        evidence = {key: value for key, separator, value in lines if separator and re.fullmatch(r"[a-z_]{1,32}", key)}
        return Response(200, (("content-length", "0"),), event="reported", mac=mac, evidence=evidence)

    def _file(self, request: Request, mac: str, name: str, path: Path | None) -> Response:
        if path is None or not path.is_file():
            return _refusal(404, f"no file {name!r} here", mac=mac)
        total = path.stat().st_size
        headers = [("content-type", BINARY), ("accept-ranges", "bytes")]
        try:
            part = parse_range(request.headers.get("range"), total) if request.method == "GET" else None
        except Unsatisfiable:
            return Response(416, (("content-range", f"bytes */{total}"), ("content-length", "0")))
        first, end = part or (0, total)
        headers.append(("content-length", str(end - first)))
        if part:
            headers.append(("content-range", f"bytes {first}-{end - 1}/{total}"))
        whole = end == total and request.method == "GET"
        return Response(
            206 if part else 200,
            tuple(headers),
            path=path,
            first=first,
            num_bytes=end - first,
            event="file_sent" if whole else "",
            mac=mac,
            evidence={"file": name, "num_bytes": end - first},
        )


def _text(text: str, event: str, mac: str, evidence: Mapping[str, str | int | float]) -> Response:
    data = text.encode()
    headers = (("content-type", TEXT), ("content-length", str(len(data))))
    return Response(200, headers, text=data, event=event, mac=mac, evidence=evidence)


def _refusal(status: int, why: str, *, mac: str = "", allow: str = "") -> Response:
    data = f"{why}\n".encode()
    headers = [("content-type", TEXT), ("content-length", str(len(data)))]
    if allow:
        headers.append(("allow", allow))
    return Response(
        status, tuple(headers), text=data, event="http_refused", mac=mac, evidence={"status": status, "why": why}
    )
