"""A headless Chromium, spoken to by its DevTools protocol: what a page shows, and what its console says."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = "/usr/bin/chromium"
START_S, ANSWER_S = 60.0, 60.0
OPTIONS = (
    "--headless",
    "--no-sandbox",  # root is refused one
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Tab:
    """One page. Errors of its console, exceptions and failed requests gather in `complaints`."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.complaints: list[str] = []
        self._number = 0
        self._loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(ANSWER_S))
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Network.loadingFailed":
            self.complaints.append(told["errorText"])

    def open(self, url: str) -> None:
        self._loaded = False
        self.ask("Page.navigate", url=url)
        while not self._loaded:
            self._hear(json.loads(self.socket.recv(ANSWER_S)))

    def resize(self, width: int, height: int, *, is_phone: bool = False, scheme: str = "light") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, as long as it is."""
        taken = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """A browser with one empty tab; it is gone at the end."""
    log = profile.with_suffix(".log")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [PROGRAM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"], stdout=sink, stderr=sink
        )
    try:
        with connect(_tab_url(profile, process, log), max_size=None, open_timeout=START_S) as socket:
            tab = Tab(socket)
            yield tab
            socket.send(json.dumps({"id": 0, "method": "Browser.close"}))  # ends its helpers too
            process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _tab_url(profile: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    import httpx

    port_file, until = profile / "DevToolsActivePort", time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        if port_file.exists() and (port := port_file.read_text().partition("\n")[0]):
            tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=ANSWER_S, trust_env=False).json()
            for tab in tabs:
                if tab["type"] == "page":
                    return str(tab["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError(f"chromium did not start: {log.read_text(errors='replace')[-2000:]}")
