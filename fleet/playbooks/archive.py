"""Runs on disk: each in a folder of its own with its inputs, Ansible's events and output, and a record of its end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.fleet.playbooks.runner import EVENTS_DIR, OUTPUT_FILE
from duckfleet.fleet.report.archive import stem_of
from duckfleet.inventory.codec import from_plain, to_plain
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.whole_file import write_whole

KEEP = 100  # runs
RECORD = "run.json"
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class MachineResult:
    """What a run did on one machine."""

    machine: str  # the duck's name, or that of the host
    mac: str  # empty: the host
    outcome: str
    detail: str
    is_well: bool
    num_ok: int
    num_changed: int
    num_skipped: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, as it is read afterwards."""

    run: str  # its name, and that of its folder
    playbook: str
    is_check: bool
    settings: Mapping[str, Any]
    started_at_s: float
    finished_at_s: float
    outcome: str  # ok, failed, interrupted; UNFINISHED: under way, or killed
    results: tuple[MachineResult, ...]
    return_code: int  # of ansible-playbook


def new_run(folder: Path, playbook: str, at_s: float) -> Path:
    """Make the folder of a run that begins now. Raises `OperatorError` where it cannot be written."""
    path = folder / f"{stem_of(at_s)}-{playbook}"
    try:
        path.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}; choose another state directory with --state") from error
    return path


def save(folder: Path, record: RunRecord) -> None:
    """Keep the record, in the place of one made earlier in the run, and as many runs as are kept."""
    write_whole(folder / record.run / RECORD, json.dumps(to_plain(record), indent=1, ensure_ascii=False) + "\n")
    there = sorted(path.parent for path in folder.glob(f"*/{RECORD}"))
    for path in there[:-KEEP]:
        shutil.rmtree(path, ignore_errors=True)


def runs(folder: Path) -> list[RunRecord]:
    """Oldest first; a record that cannot be read is left out."""
    return [record for path in sorted(folder.glob(f"*/{RECORD}")) if (record := _load(path)) is not None]


def find(folder: Path, name: str) -> RunRecord:
    """The newest run whose name begins or ends so, or the newest of all for `last`. Raises `OperatorError`."""
    there = runs(folder)
    wanted = [record for record in there if name == "last" or record.run.startswith(name) or record.run.endswith(name)]
    if not wanted:
        known = ", ".join(record.run for record in there[-5:]) or "none yet"
        raise OperatorError(f"no playbook run {name!r} under {folder}; the newest: {known}")
    return wanted[-1]


def raw_events(folder: Path, record: RunRecord) -> Iterator[Mapping[str, Any]]:
    """The events of a run as ansible-runner kept them, in their order."""
    numbered = []
    for path in (folder / record.run / EVENTS_DIR).glob("*.json"):
        number = path.name.partition("-")[0]
        if number.isdigit():
            numbered.append((int(number), path))
    for _, path in sorted(numbered):
        try:
            event = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # cut short by a full disk or a crash: the others still tell
        if isinstance(event, dict):
            yield event


def output(folder: Path, record: RunRecord) -> str:
    """What Ansible printed."""
    try:
        return (folder / record.run / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _load(path: Path) -> RunRecord | None:
    try:
        return from_plain(RunRecord, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, OperatorError):
        return None
