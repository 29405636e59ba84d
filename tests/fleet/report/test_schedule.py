"""The nightly timer: units that systemd takes, a real crontab, and nothing left of either."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from duckfleet.fleet.cli import run
from duckfleet.fleet.report.schedule import Crontab, Nightly, Systemd, parse_time
from duckfleet.inventory.errors import OperatorError
from tests.fleet.report.pond import Pond


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    state = tmp_path / "a 100% state"
    state.mkdir()
    return Nightly((sys.executable, "-c", "import sys; print(sys.argv[1])", str(state)), state, 3, 7)


def test_systemd_takes_the_units(nightly: Nightly, tmp_path: Path) -> None:
    for name, text in nightly.files.items():
        (tmp_path / name).write_text(text)
    timer = tmp_path / f"{nightly.name}.timer"
    done = subprocess.run(["systemd-analyze", "verify", str(timer)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


def test_a_timer_is_enabled_and_removed_again(nightly: Nightly, tmp_path: Path) -> None:
    systemd = Systemd(is_user=False, root=tmp_path / "root")
    folder = systemd.folder
    systemd.install(nightly)
    systemd.install(nightly)
    assert {path.name for path in folder.glob("*report*")} == set(nightly.files)
    wanted = folder / "timers.target.wants" / f"{nightly.name}.timer"
    assert wanted.is_symlink()
    assert "OnCalendar=*-*-* 03:07:00\n" in (folder / wanted.name).read_text()
    assert systemd.remove(nightly)
    assert [path for path in folder.rglob("*") if not path.is_dir()] == []
    assert not systemd.remove(nightly)


@pytest.fixture
def crontab(tmp_path: Path) -> Crontab:
    folder = tmp_path / "crontabs"
    folder.mkdir()
    return Crontab(("busybox", "crontab", "-c", str(folder), "-u", "root"))


def test_a_line_of_the_crontab_comes_and_goes_and_others_stay(nightly: Nightly, crontab: Crontab) -> None:
    theirs = "15 4 * * * /usr/local/bin/backup # duckfleet-report is not this\n"
    subprocess.run([*crontab.program, "-"], input=theirs, text=True, check=True, timeout=30)
    crontab.install(nightly)
    crontab.install(nightly)
    listed = subprocess.run([*crontab.program, "-l"], capture_output=True, text=True, check=True, timeout=30).stdout
    assert listed == theirs + nightly.cron_line + "\n" and nightly.cron_line.startswith("7 3 * * * ")
    assert crontab.remove(nightly) and not crontab.remove(nightly)
    assert subprocess.run([*crontab.program, "-l"], capture_output=True, text=True, timeout=30).stdout == theirs


def test_the_line_is_the_command_whatever_its_paths(nightly: Nightly) -> None:
    """As cron reads it: an escaped per cent sign is one, the rest is the shell's."""
    command = nightly.cron_line.split(maxsplit=5)[5].replace(r"\%", "%").replace(">/dev/null", "")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{nightly.state}\n"


def test_another_state_directory_is_another_report(nightly: Nightly, crontab: Crontab, tmp_path: Path) -> None:
    other = Nightly(nightly.command, tmp_path, 4, 0)
    crontab.install(nightly)
    crontab.install(other)
    assert crontab.remove(other)
    assert crontab.remove(nightly)


@pytest.mark.parametrize("text", ["", "6", "24:00", "6:60", "6:5", "-1:00", "a:00", "06:00:00"])
def test_no_time_of_day(text: str) -> None:
    with pytest.raises(OperatorError):
        parse_time(text)


def test_times_of_day() -> None:
    assert [parse_time(text) for text in ("06:00", "6:00", "23:59")] == [(6, 0), (6, 0), (23, 59)]


def test_what_is_printed_runs_and_makes_a_report(pond: Pond, capsys: pytest.CaptureFixture[str]) -> None:
    pond.fill(1)
    options = ["--state", str(pond.state), "--site", str(pond.site_path)]
    assert run([*options, "report", "install", "--at", "04:05", "--print"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("5 4 * * * ")
    command = shlex.split(line.split(maxsplit=5)[5], comments=True)
    assert command[-1] == ">/dev/null"
    done = subprocess.run(command[:-1], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 13, done.stderr
    assert (pond.state / "reports/latest.html").exists()


def test_neither_systemd_nor_cron_is_said(
    pond: Pond, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(pond.state))
    assert shutil.which("crontab") is None
    assert run(["--state", str(pond.state), "--site", str(pond.site_path), "report", "install", "--with", "cron"]) == 2
    assert "there is no crontab here" in capsys.readouterr().err
