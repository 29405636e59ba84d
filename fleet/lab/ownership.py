"""Processes that we started: known by pid *and* start time, so that a stranger who got the pid is never signalled."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from duckfleet.inventory.whole_file import write_whole

LAB_VARIABLE = "DUCKFLEET_LAB"
"""Environment variable that every process of a lab carries; its value is the lab's folder."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, for as long as the machine is up."""

    pid: int
    start_ticks: int  # /proc/PID/stat, field 22: clock ticks after boot
    boot_id: str

    def save(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> ProcessId | None:
        """The recorded process, or None when nothing (or nothing usable) is recorded."""
        try:
            value = json.loads(path.read_text())
            return cls(int(value["pid"]), int(value["start_ticks"]), str(value["boot_id"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None when it has ended (a zombie has)."""
        try:
            # The command's name stands in brackets and may hold anything, brackets and blanks too.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id())

    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def end(self, grace_s: float) -> bool:
        """Ask it to stop, and kill it when it has not after `grace_s`. False when it was not running."""
        with self._handle() as handle:
            if handle is None:
                return False
            if grace_s > 0:
                _signal(handle, signal.SIGTERM)
                if select.select([handle], [], [], grace_s)[0]:
                    return True
            _signal(handle, signal.SIGKILL)
            select.select([handle], [], [], 10.0)
            return True

    @contextlib.contextmanager
    def _handle(self) -> Iterator[int | None]:
        """A pidfd of this very process: opened first and compared afterwards, it cannot go over to another one."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            yield None
            return
        try:
            yield handle if self.is_alive() else None
        finally:
            os.close(handle)


def boot_id() -> str:
    """The kernel's random id of this boot; shared by every process and container of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def lab_marker(folder: Path) -> str:
    """What the processes of the lab in `folder` carry in their environment."""
    return str(folder.resolve())


def processes_of_lab(folder: Path) -> list[ProcessId]:
    """Running processes that carry the lab's marker, whether recorded or not; never this one."""
    return processes_marked(LAB_VARIABLE, lab_marker(folder))


def processes_marked(variable: str, value: str) -> list[ProcessId]:
    """Running processes with this in their environment, whoever their parent is now; never this one."""
    marker = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        process = ProcessId.of(int(entry.name))
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or another user's
        if process is not None and marker in environment.split(b"\0"):
            found.append(process)
    return found


def _signal(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
