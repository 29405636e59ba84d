"""Where the running server is: a file in the state directory that its own process writes and removes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from duckfleet.fleet.lab.ownership import ProcessId
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.file_lock import held_alone
from duckfleet.inventory.whole_file import write_whole

FILE = "serving.json"
LOCK = "serving.lock"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A server that listens."""

    url: str
    model: str
    generation: int
    pid: int


@contextmanager
def only_server(state_dir: Path) -> Iterator[None]:
    """Hold the right to serve this fleet; a second server would take the ducks' session away from the first.

    Raises `OperatorError` that names the server that has it. The kernel gives it back when its process ends, however.
    """

    def refuse() -> None:
        running = running_server(state_dir)
        where = f": {running.model} at {running.url}, pid {running.pid}" if running else " by one that is starting"
        raise OperatorError(f"this fleet is being served already{where}; end that server first")

    with held_alone(state_dir / LOCK, refuse):
        yield


def announce(state_dir: Path, announcement: Announcement) -> None:
    """Say it; a file of a server that was killed is replaced."""
    process = ProcessId.of(announcement.pid)
    text = json.dumps({**asdict(announcement), "process": asdict(process) if process else None})
    write_whole(state_dir / FILE, text)


def retract(state_dir: Path, pid: int) -> None:
    """Remove the announcement, unless another server has made its own since."""
    found = _read(state_dir / FILE)
    if found is not None and found[0].pid == pid:
        (state_dir / FILE).unlink(missing_ok=True)


def running_server(state_dir: Path) -> Announcement | None:
    """The server that was started with this state directory, if it still runs."""
    found = _read(state_dir / FILE)
    return found[0] if found is not None and found[1] is not None and found[1].is_alive() else None


def _read(path: Path) -> tuple[Announcement, ProcessId | None] | None:
    try:
        value = json.loads(path.read_text())
        process = value.pop("process")
        return Announcement(**value), ProcessId(**process) if process else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
