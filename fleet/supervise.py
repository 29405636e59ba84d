"""Keep a server running: start it again when it ends by itself, end it when we are told to.

Pure decisions here (`Restarts`), processes in `supervise`. The ducks keep their weights, so that a restarted server
moves nothing.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from duckfleet.inventory.errors import OperatorError

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 30.0
STEADY_AFTER_S = 60.0  # a server that lived this long has come up well
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Restarts:
    """What to do when the server has ended. Pure.

    A server that never came up ends us too: what it said is for a person. One that did is started again, at once the
    first time, then after twice as long each time until it lives for a while.
    """

    came_up: bool = False
    next_wait_s: float = FIRST_WAIT_S

    def ended(self, code: int, lived_s: float, came_up: bool) -> tuple[Restarts, float | None]:
        """(what is remembered, seconds until the next start or None: there is none); `code` as Popen gives it."""
        came_up_ever = self.came_up or came_up
        if code == 0 or not came_up_ever:
            return Restarts(came_up_ever), None
        wait_s = FIRST_WAIT_S if lived_s >= STEADY_AFTER_S else self.next_wait_s
        return Restarts(True, min(LONGEST_WAIT_S, 2 * wait_s)), wait_s


def child_command(orig_argv: Sequence[str], port: int) -> list[str]:
    """Our own command line without --supervise, and with the port that all its children listen on."""
    command = [argument for argument in orig_argv if argument != "--supervise"]
    for i, argument in enumerate(command):
        if argument == "--port" and i + 1 < len(command):
            command[i + 1] = str(port)
            return command
        if argument.startswith("--port="):
            command[i] = f"--port={port}"
            return command
    return [*command, "--port", str(port)]


def restart_command(command: Sequence[str]) -> list[str]:
    """Of every start but the first: ducks that were lost meanwhile do not keep the server from starting."""
    if any(argument.split("=")[0] == "--min-tp" for argument in command):
        return list(command)
    return [*command, "--min-tp", "1"]


def free_port(host: str) -> int:
    """A port that nobody listens on, for every server that will be started here. Raises `OperatorError`."""
    try:
        with socket.create_server((host, 0)) as probe:
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise OperatorError(f"cannot listen on {host}: {error.strerror or error}") from error


def supervise(command: Sequence[str], is_up: Callable[[int], bool], say: Callable[[str], None]) -> int:
    """Run `command` until it ends well or a signal ends us; returns the exit code to end with.

    `is_up(pid)` says whether the server with this pid has announced itself.
    """
    told = threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        told.set()
        if child is not None:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    restarts = Restarts()
    try:
        while True:
            started_at = time.monotonic()
            # In a session of its own: ctrl-C in a terminal reaches it through us, once.
            child = subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_parent)
            if told.is_set():
                child.terminate()
            came_up = is_up(child.pid)
            while (code := child.poll()) is None:
                came_up = came_up or is_up(child.pid)
                _wait(child, 0.05 if not came_up else 1.0)
            if told.is_set():
                return code if code >= 0 else 128 - code
            restarts, wait_s = restarts.ended(code, time.monotonic() - started_at, came_up)
            if wait_s is None:
                return code if code >= 0 else 128 - code
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            command = restart_command(command)
            say(f"the server ended with {how}; it is started again in {wait_s:g} s")
            if told.wait(wait_s):
                return 128 + signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """In the child: SIGTERM when whoever supervises it is gone (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return


UNIT = """\
[Unit]
Description=duckfleet server of {state}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
Environment=PYTHONUNBUFFERED=1
Restart=on-failure
RestartSec=200ms
# Wrong usage, site file or state: a person has to act, trying again does not help.
RestartPreventExitStatus=2
# Requests under way get this long to end.
KillSignal=SIGTERM
TimeoutStopSec=45

[Install]
WantedBy=multi-user.target
"""


def unit_text(orig_argv: Sequence[str], state: str) -> str:
    """A systemd unit that runs this very command and starts it again when it fails (systemd.service(5))."""
    words = [word for word in orig_argv if word != "--print-unit"]
    words[0] = words[0] if words[0].startswith("/") else sys.executable
    return UNIT.format(command=" ".join(systemd_word(word) for word in words), state=state)


def systemd_word(word: str) -> str:
    """As systemd reads command lines: specifiers and variables doubled, in quotes where there are spaces."""
    word = word.replace("%", "%%").replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"' if any(c.isspace() for c in word) or not word else word
