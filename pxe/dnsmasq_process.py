"""dnsmasq as a child process: started, watched, started again when it ends, its log handed on in order."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from duckfleet.inventory.errors import OperatorError

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
RESTART_AFTER_S = 1.0
READ_BYTES = 65_536
_STARTED = "started, version"


class DnsmasqProcess:
    """One dnsmasq with one configuration file. `on_line` gets each line of its log, from whichever thread reads it."""

    def __init__(self, config: Path, pid_file: Path, on_line: Callable[[str], None]) -> None:
        self._config = config
        self._pid_file = pid_file
        self._on_line = on_line
        self._lock = threading.RLock()  # one reader at a time, so that lines stay in order
        self._rest = b""
        self._last_lines: deque[str] = deque(maxlen=10)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._up = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="boot-dnsmasq", daemon=True)
        self.num_restarts = 0

    def start(self) -> None:
        """Raises `OperatorError` with dnsmasq's own words when it does not come up."""
        self._end_leftover()
        self._spawn()
        self._watcher.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._up.wait(0.02):
            if self.num_restarts or time.monotonic() > deadline:
                self.stop()
                said = "; ".join(self._last_lines) or "nothing"
                raise OperatorError(f"dnsmasq did not start: {said} (is another DHCP server running on this host?)")

    def drain(self) -> None:
        """Hand on what dnsmasq has written by now: whoever acts on its answers calls this before telling of it."""
        with self._lock:
            if self._process and self._process.stderr:
                self._read(self._process.stderr.fileno())

    def stop(self) -> None:
        self._stopping.set()
        process = self._process
        if process and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._watcher.is_alive():
            self._watcher.join(STOP_TIMEOUT_S)

    def _end_leftover(self) -> None:
        """End the dnsmasq of an earlier run that was killed: it holds the ports, and it is ours by its command line."""
        try:
            pid = int(self._pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return
        if f"--conf-file={self._config}".encode() not in words:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _spawn(self) -> None:
        command = ["dnsmasq", "--keep-in-foreground", f"--conf-file={self._config}", "--log-facility=-"]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except FileNotFoundError as error:
            raise OperatorError("dnsmasq is not here: install Debian's package dnsmasq-base") from error
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        with self._lock:
            self._process, self._rest = process, b""

    def _watch(self) -> None:
        while not self._stopping.is_set():
            process = self._process
            assert process is not None and process.stderr is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stderr, selectors.EVENT_READ)
                while process.poll() is None:
                    if selector.select(timeout=0.5):
                        self.drain()
            self.drain()
            process.stderr.close()
            if self._stopping.is_set():
                return
            self.num_restarts += 1
            self._on_line(f"duckctl: dnsmasq ended with status {process.returncode}")
            if not self._up.is_set() or self._stopping.wait(RESTART_AFTER_S):
                return
            self._spawn()

    def _read(self, descriptor: int) -> None:
        while True:
            try:
                data = os.read(descriptor, READ_BYTES)
            except (BlockingIOError, OSError):
                return
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for raw in lines:
                line = raw.decode("utf-8", errors="replace")
                self._last_lines.append(line)
                if _STARTED in line:
                    self._up.set()
                self._on_line(line)
