"""The command line as a whole: help without torch, exit codes, one clear line for every error that is not a bug."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def duckctl(*arguments: str, state: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(state), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=state,
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "COLUMNS": "120", "HOME": str(state), **environment},
    )


HEAVY = ("torch", "transformers", "sqlalchemy", "alembic", "scapy", "paramiko", "fastapi", "numpy", "httpx")


def commands() -> list[tuple[str, ...]]:
    import typer

    from duckfleet.fleet.cli import app

    found: list[tuple[str, ...]] = []

    def walk(command: object, path: tuple[str, ...]) -> None:
        found.append(path)
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, (*path, name))

    walk(typer.main.get_command(app), ())
    return found


def test_help_of_every_command_answers_without_anything_heavy() -> None:
    code = f"""
import sys
from duckfleet.fleet.cli import run
for path in {commands()!r}:
    assert run([*path, "--help"]) == 0, path
sys.exit(", ".join(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "", f"imported {done.stderr}"


def test_every_command_teaches() -> None:
    import typer

    from duckfleet.fleet.cli import app

    def walk(command: object, path: str) -> list[str]:
        text = getattr(command, "help", None) or ""
        silent = [] if len(text) > 20 else [path]
        for parameter in getattr(command, "params", []):
            if parameter.name not in ("help", "install_completion", "show_completion") and not parameter.help:
                silent.append(f"{path} {parameter.name}")
        for name, sub in getattr(command, "commands", {}).items():
            silent += walk(sub, f"{path} {name}")
        return silent

    assert walk(typer.main.get_command(app), "duckctl") == []


def test_usage_errors_end_with_2(tmp_path: Path) -> None:
    for arguments in (("frobnicate",), ("wake", "--foo"), ("lab", "up", "--ducks", "x"), ("place",)):
        done = duckctl(*arguments, state=tmp_path)
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr
        assert "Error" in done.stderr


def test_without_a_site_file_it_says_where_it_looked_and_how_to_make_one(tmp_path: Path) -> None:
    done = duckctl("status", state=tmp_path)
    assert done.returncode == 2
    assert "duckctl: no site file" in done.stderr
    assert "duckctl init" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Path:
    done = duckctl(
        "init",
        "--domain",
        "d1,lo,127.77.1.1,127.77.1.[101-108]",
        "--duck",
        "00:e0:4c:00:00:01,127.77.1.101,ann,r1u1",
        "--duck",
        "00-E0-4C-00-00-02,127.77.1.102,bob",
        "--ram-gib",
        "32",
        state=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "duckfleet.toml"


def test_init_writes_a_site_file_and_keys_and_keeps_both(site: Path) -> None:
    keys = site.parent / "keys"
    before = (keys / "fleet.pub").read_text()
    assert (keys / "fleet.key").stat().st_mode & 0o777 == 0o600
    again = duckctl("init", state=site.parent)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert (keys / "fleet.pub").read_text() == before


def test_init_refuses_what_the_reader_would_refuse(tmp_path: Path) -> None:
    done = duckctl("init", "--duck", "ff:ff:ff:ff:ff:ff,10.0.0.1", state=tmp_path)
    assert done.returncode == 2
    assert "broadcast" in done.stderr
    done = duckctl("init", "--domain", "d1,lo,127.77.1.1", state=tmp_path)
    assert "NAME,IFACE,HOST,NODES" in done.stderr
    done = duckctl("init", "--domain", "d1,lo,127.77.1.1,127.77.2.[101-108]", state=tmp_path)
    assert done.returncode == 2
    assert "127.77.2.[101-108]" in done.stderr and "site file:" not in done.stderr
    done = duckctl("init", state=tmp_path)
    assert done.returncode == 2
    assert "--domain" in done.stderr
    assert not (tmp_path / "duckfleet.toml").exists()


def test_status_of_ducks_never_seen(site: Path) -> None:
    done = duckctl("status", "--json", state=site.parent)
    assert done.returncode == 3
    values = json.loads(done.stdout)
    assert [(value["duck"], value["state"]) for value in values] == [("ann", "unknown"), ("bob", "unknown")]
    table = duckctl("status", state=site.parent)
    assert "ann" in table.stdout
    assert "r1u1" in table.stdout


def test_a_broken_site_file_is_named_with_its_line(site: Path) -> None:
    site.write_text(site.read_text().replace('"ann"', "17"))
    done = duckctl("status", state=site.parent)
    assert done.returncode == 2
    assert f"duckfleet.toml:{site.read_text().splitlines().index('name = 17') + 1}: ducks[0].name = 17" in done.stderr


def test_a_duck_that_stays_silent_is_lost_with_its_evidence(site: Path) -> None:
    done = duckctl("wake", "ann", "--wait", "--timeout", "0.5", "--json", state=site.parent)
    assert done.returncode == 3
    (value,) = json.loads(done.stdout)
    assert (value["duck"], value["state"], value["ok"]) == ("ann", "lost", False)
    log = json.loads(duckctl("log", "ann", "--json", state=site.parent).stdout)
    assert [event["kind"] for event in log] == ["wake_sent", "timed_out"]
    assert log[0]["evidence"]["payload_bytes"] == 102
    assert log[1]["evidence"]["in_state"] == "waking"
    assert "refused" in log[1]["evidence"]["last_answer"]
    assert duckctl("log", "bob", "--json", state=site.parent).stdout.strip() == "[]"


def test_place_and_serve_say_what_is_missing(site: Path) -> None:
    done = duckctl("place", "smollm2", state=site.parent)
    assert done.returncode == 1
    assert "0 ducks are ready" in done.stderr
    assert "ann is unknown" in done.stderr
    done = duckctl("serve", state=site.parent)
    assert done.returncode == 2
    assert "duckctl place" in done.stderr


def test_a_held_duck_is_left_out_until_it_is_released(site: Path) -> None:
    state = site.parent
    assert duckctl("hold", "ann", "--reason", "fan rattles", state=state).returncode == 0
    values = json.loads(duckctl("status", "--json", state=state).stdout)
    assert values[0]["state"] == "quarantined"
    assert "fan rattles" in values[0]["missing"]
    assert duckctl("release", "ann", state=state).returncode == 0
    values = json.loads(duckctl("status", "--json", state=state).stdout)
    assert values[0]["state"] == "unknown"
    assert duckctl("watch", "--once", state=state).returncode == 0


def test_off_ends_nothing_but_daemons_on_this_host(site: Path) -> None:
    for by in ("ssh", "power"):
        done = duckctl("off", "ann", "--by", by, state=site.parent)
        assert done.returncode == 3
        assert "this host's own address" in done.stdout


def test_no_auth_is_said_loudly(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "duckfleet.fleet.cli", "--no-auth", "--state", str(site.parent), "status"],
        capture_output=True,
        text=True,
        cwd=site.parent,
        timeout=60,
    )
    assert "nothing on the wire is authenticated" in done.stderr


def test_a_state_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(tmp_path / "file" / "x"), "init"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 2
    assert "state directory" in done.stderr


def test_doctor_looks_and_says_what_to_fix(site: Path) -> None:
    done = duckctl("doctor", "--json", state=site.parent)
    findings = json.loads(done.stdout)
    subjects = {finding["subject"] for finding in findings}
    assert {"python", "CPU", "keys", "clock", "store", "site file", "domain d1"} <= subjects
    assert done.returncode == (1 if any(finding["verdict"] == "bad" for finding in findings) else 0)
    (site.parent / "keys" / "fleet.key").chmod(0o644)
    done = duckctl("doctor", state=site.parent)
    assert done.returncode == 1
    assert "chmod 600" in done.stdout


def test_both_a_lab_and_a_site_file_is_asked_about(site: Path) -> None:
    lab = site.parent / "lab"
    lab.mkdir()
    (lab / "duckfleet.toml").write_text(site.read_text())
    done = duckctl("status", state=site.parent)
    assert done.returncode == 2
    assert "--site" in done.stderr
    assert duckctl("--site", str(site), "status", state=site.parent).returncode == 3


def test_the_version_is_told(tmp_path: Path) -> None:
    done = duckctl("--version", state=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("duckctl ") and done.stdout.split()[1][0].isdigit()
