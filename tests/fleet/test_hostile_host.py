"""What can be wrong with the host itself: disks, files, keys, network, a second command, ctrl-C. Never a traceback."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duckfleet.fleet.cli import run
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab.processes import lab_status
from duckfleet.fleet.trust import make_keys
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.file_lock import held_alone
from duckfleet.runtime.wire import FleetKeys
from tests.fleet.tiny_checkpoint import make_checkpoint

StartLab = Callable[..., FleetContext]
Said = pytest.CaptureFixture[str]

needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system of its own takes root")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def refused(arguments: list[str], said: Said, *, code: int = 2) -> str:
    """What a command says that must end with `code` and without a traceback."""
    assert run(arguments) == code, said.readouterr()
    out = said.readouterr()
    assert "Traceback" not in out.err and "bug of duckfleet" not in out.err
    return out.out + out.err


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


@needs_mount
def test_a_full_disk_is_named_and_the_next_command_works(small_disk: Path, checkpoint: Path, capsys: Said) -> None:
    state = ["--state", str(small_disk)]
    assert run([*state, "model", "pull", str(checkpoint)]) == 0
    filler = fill(small_disk)
    for command in (
        ["model", "pull", str(checkpoint), "--name", "second"],
        ["model", "prepare", "tiny", "--tp", "2"],
        ["lab", "up", "--ducks", "1"],
        ["init"],
    ):
        assert "space left" in refused([*state, *command], capsys), command
    assert run([*state, "doctor", "--json"]) == 1
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["state directory"]["verdict"] == "bad" and "make room" in findings["state directory"]["fix"]
    filler.unlink()
    assert run([*state, "model", "pull", str(checkpoint), "--name", "second"]) == 0
    assert run([*state, "lab", "up", "--ducks", "1"]) == 0
    assert run([*state, "lab", "down"]) == 0
    assert sorted(path.name for path in (small_disk / "models").iterdir()) == ["second", "tiny"]


@needs_mount
def test_a_read_only_state_directory_is_named(small_disk: Path, checkpoint: Path, capsys: Said) -> None:
    state = ["--state", str(small_disk)]
    assert run([*state, "model", "pull", str(checkpoint)]) == 0
    make_keys(small_disk / "keys")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in (
        ["model", "pull", str(checkpoint), "--name", "second"],
        ["model", "rm", "tiny"],
        ["lab", "up", "--ducks", "1"],
    ):
        assert "Read-only file system; choose a state directory" in refused([*state, *command], capsys), command
    assert run([*state, "model", "list"]) == 0
    assert "tiny" in capsys.readouterr().out


def test_no_network_is_the_hosts_matter_and_no_duck_is_lost(start_lab: StartLab, tmp_path: Path) -> None:
    fleet = start_lab(1)
    assert Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True)[0].ok

    environment = {**os.environ, "PIP_RETRIES": "0"}

    def offline(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(fleet.state_dir), *arguments]
        unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
        return subprocess.run(
            [*unshare, *command], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
        )

    doctor = offline("doctor", "--json")
    domain = next(found for found in json.loads(doctor.stdout) if found["subject"] == "domain d1")
    assert (doctor.returncode, domain["verdict"], domain["fix"]) == (1, "bad", "ip link set lo up")
    probed = offline("probe", "--json")
    assert probed.returncode == 3
    assert "cannot be reached from this host" in json.loads(probed.stdout)[0]["reasons"][0]
    woken = offline("wake", "--json")
    assert woken.returncode == 3
    assert "`duckctl doctor`" in json.loads(woken.stdout)[0]["detail"]
    assert json.loads(offline("status", "--json").stdout)[0]["state"] == "up"
    pulled = offline("model", "pull", "smollm2")
    assert pulled.returncode == 1
    assert "network" in pulled.stderr and "Traceback" not in pulled.stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda keys: (keys / "fleet.key").write_text("ab"), "bring back a copy"),
        (lambda keys: (keys / "fleet.pub").write_text("ab" * 32 + "\n"), "bring back a copy"),
        (lambda keys: (keys / "enrolment.secret").unlink(), "bring back a copy"),
        (lambda keys: (keys / "fleet.key").chmod(0o644), "chmod 600"),
    ],
)
def test_damaged_keys_say_what_to_do_and_init_leads_out(
    tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    keys = tmp_path / "keys"
    make_keys(keys)
    damage(keys)
    with pytest.raises(OperatorError, match=says):
        FleetKeys.load(keys)
    keys.rename(tmp_path / "aside")  # as the message says
    make_keys(keys)
    assert FleetKeys.load(keys)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_store_says_how_to_go_on(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    state = ["--state", str(tmp_path)]
    init = ["init", "--domain", "d1,lo,127.77.1.1,127.77.1.[101-108]", "--duck", "00:e0:4c:00:00:01,127.77.1.101"]
    assert run([*state, *init]) == 0
    (tmp_path / "fleet.db").write_bytes(content)
    capsys.readouterr()
    if content:  # an empty file is a store that was not filled yet
        assert "move it aside" in refused([*state, "status"], capsys)
        (tmp_path / "fleet.db").rename(tmp_path / "aside.db")
    assert run([*state, "status"]) == 3


def test_place_is_refused_while_another_one_runs(tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with held_alone(tmp_path / "placing.lock", lambda: None):
        said = refused(["--state", str(tmp_path), "place", "tiny"], capsys)
    assert "another `duckctl place` is under way" in said


def test_waking_a_lab_whose_relay_was_killed(start_lab: StartLab, capsys: Said) -> None:
    fleet = start_lab(1)
    lab = lab_status(fleet.lab_dir)
    assert lab is not None and lab.relay_pid is not None
    os.kill(lab.relay_pid, signal.SIGKILL)
    os.waitpid(lab.relay_pid, 0)
    said = refused(["--state", str(fleet.state_dir), "wake", "--wait"], capsys)
    assert "power relay" in said and "`lab up`" in said


def test_a_damaged_lab_record_can_be_cleaned_up(start_lab: StartLab, capsys: Said) -> None:
    fleet = start_lab(1)
    for damage in ("{", "[]", '{"kind": "processes"}'):
        (fleet.lab_dir / "lab.json").write_text(damage)
        assert "`duckctl lab down` cleans up" in refused(["--state", str(fleet.state_dir), "lab", "status"], capsys)
    assert run(["--state", str(fleet.state_dir), "lab", "down"]) == 0
    assert not fleet.lab_dir.exists()


def test_ctrl_c_while_python_still_reads_our_modules() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "duckfleet.fleet.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
from duckfleet.fleet.start import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")
