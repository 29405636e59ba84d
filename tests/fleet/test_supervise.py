"""When a server is started again, how, and what systemd is told."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duckfleet.fleet.supervise import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    STEADY_AFTER_S,
    Restarts,
    child_command,
    supervise,
    unit_text,
)


def test_one_that_never_came_up_is_not_tried_again() -> None:
    assert Restarts().ended(2, 1.0, came_up=False)[1] is None
    assert Restarts().ended(-signal.SIGKILL, 1.0, came_up=False)[1] is None


def test_one_that_was_up_is_tried_again_with_back_off() -> None:
    restarts, waits = Restarts(), []
    for _ in range(12):
        restarts, wait_s = restarts.ended(-signal.SIGKILL, 1.0, came_up=not waits)
        waits.append(wait_s)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S
    assert restarts.ended(1, STEADY_AFTER_S, came_up=True)[1] == FIRST_WAIT_S


def test_one_that_ended_well_is_not() -> None:
    assert Restarts(came_up=True).ended(0, 1.0, came_up=True)[1] is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["duckctl", "serve", "--supervise"], ["duckctl", "serve", "--port", "81"]),
        (["py", "duckctl", "serve", "--supervise", "--port", "0"], ["py", "duckctl", "serve", "--port", "81"]),
        (["duckctl", "serve", "--port=9", "--supervise", "x"], ["duckctl", "serve", "--port=81", "x"]),
    ],
)
def test_children_are_told_their_port_and_not_to_supervise(argv: list[str], expected: list[str]) -> None:
    assert child_command(argv, 81) == expected


def test_a_child_is_started_again_until_it_ends_well(tmp_path: Path) -> None:
    script = f"""
import os, pathlib, signal
runs = pathlib.Path({str(tmp_path / "runs")!r})
count = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (count + 1))
if count < 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    said: list[str] = []
    assert supervise([sys.executable, "-c", script], lambda pid: True, said.append) == 0
    assert (tmp_path / "runs").read_text() == "xxx"
    assert len(said) == 2
    assert "SIGKILL" in said[0]


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = unit_text([sys.executable, "/opt/duck ctl", "serve", "--print-unit", "--api-key", "100%$x"], "/state")
    assert "--print-unit" not in unit
    assert '"/opt/duck ctl" serve --api-key 100%%$$x' in unit
    assert "Restart=on-failure" in unit
    if shutil.which("systemd-analyze"):
        file = tmp_path / "duckfleet.service"
        file.write_text(unit_text([sys.executable, "-V", "--print-unit"], "/state"))
        done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True)
        assert "duckfleet.service" not in done.stderr, done.stderr
