"""Processes that end with the one that started them, and are on record while they run."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from duckfleet.fleet.lab.ownership import ProcessId

_PR_SET_PDEATHSIG = 1  # prctl(2)


def start(command: Sequence[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start it with its output in NAME.log and its record in NAME.pid.json of `folder`. Raises `OSError`.

    The kernel kills it when this process ends, however. For a process of one thread only: it forks with a hook.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with (folder / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
    process = ProcessId.of(child.pid)
    if process is not None:
        process.save(_record(folder, name))
    return child


def forget(folder: Path, name: str) -> None:
    """Remove the record of one that has ended."""
    _record(folder, name).unlink(missing_ok=True)


def _record(folder: Path, name: str) -> Path:
    return folder / f"{name}.pid.json"
