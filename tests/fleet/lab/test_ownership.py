"""Only what we started is ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from duckfleet.fleet.lab.ownership import LAB_VARIABLE, ProcessId, lab_marker, processes_of_lab


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def test_a_process_is_known_by_its_start_too(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    assert process.is_alive()
    process.save(tmp_path / "p.json")
    assert ProcessId.load(tmp_path / "p.json") == process


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_stranger_with_the_same_pid_is_left_alone(
    sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    recorded = replace(process, **change)  # type: ignore[arg-type]
    assert not recorded.is_alive()
    assert recorded.end(grace_s=0.1) is False
    assert sleeper.poll() is None


def test_ending_asks_first_and_then_does_not(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    assert process.end(grace_s=5.0) is True
    assert sleeper.wait(5) == -signal.SIGTERM
    assert process.end(grace_s=5.0) is False
    deaf = subprocess.Popen(
        [sys.executable, "-c", "import signal,time; signal.signal(15, 1); print(1, flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    assert deaf.stdout is not None
    deaf.stdout.readline()
    process = ProcessId.of(deaf.pid)
    assert process is not None
    assert process.end(grace_s=0.1) is True
    assert deaf.wait(5) == -signal.SIGKILL


def test_a_process_whose_name_looks_like_stat_fields_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "60"])
    try:
        process = ProcessId.of(child.pid)
        assert process is not None
        assert process.start_ticks > 1000
    finally:
        child.kill()
        child.wait()


def test_the_dead_and_the_damaged_are_nobody(tmp_path: Path) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessId.of(zombie.pid) is None
    zombie.wait()
    assert ProcessId.load(tmp_path / "none") is None
    (tmp_path / "bad").write_text('{"pid": "x"}')
    assert ProcessId.load(tmp_path / "bad") is None


def test_processes_of_a_lab_are_found_by_its_marker_only(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    mine = subprocess.Popen(["sleep", "60"], env={**os.environ, LAB_VARIABLE: lab_marker(folder)})
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, LAB_VARIABLE: lab_marker(folder) + "2"})
    try:
        assert [process.pid for process in processes_of_lab(folder)] == [mine.pid]
    finally:
        for child in (mine, other):
            child.kill()
            child.wait()
