"""`duckctl report` from a store that a running lab filled: real ducks, real probes, a fault that was really there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from duckfleet.fleet.cli import run
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab.processes import lab_status
from duckfleet.fleet.probing import ProbeOptions, probe_all
from duckfleet.inventory.site import Duck

StartLab = Callable[..., FleetContext]


def duckctl(fleet: FleetContext, *arguments: str) -> int:
    return run(["--state", str(fleet.state_dir), *arguments])


def probe(fleet: FleetContext) -> dict[str, str]:
    """Verdicts by name. Without the burst test: what a crowded machine loses is no duck's fault."""
    options = ProbeOptions(num_echoes=0)
    results = probe_all(fleet.site, fleet.known_store, fleet.keys, fleet.site.ducks, options=options)
    return {result.duck.name: result.verdict for result in results}


def kill_daemon(fleet: FleetContext, duck: Duck) -> None:
    """The daemon of a process duck ends, the box (this one) goes on answering."""

    def pid() -> int | None:
        status = lab_status(fleet.lab_dir)
        assert status is not None
        return next(one.pid for one in status.ducks if one.mac == duck.mac)

    running, until = pid(), time.monotonic() + 60
    assert running is not None
    os.kill(running, signal.SIGKILL)
    while pid() is not None:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_daemon_that_died_is_found_ordered_and_gone_again(
    start_lab: StartLab, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = start_lab(3)
    well, also_well, victim = fleet.site.ducks
    assert duckctl(fleet, "wake", "--wait") == 0
    assert probe(fleet) == {duck.name: "healthy" for duck in fleet.site.ducks}
    capsys.readouterr()
    assert duckctl(fleet, "report", "--json") == 0, "a clean fleet has no finding"
    clean = json.loads(capsys.readouterr().out)
    assert clean["findings"] == [] and clean["work"] == []

    kill_daemon(fleet, victim)
    assert probe(fleet)[victim.name] == "unknown"
    capsys.readouterr()
    assert duckctl(fleet, "report", "--json") == 14
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert (finding["duck"], finding["severity"]) == (victim.name, "critical")
    assert finding["causes"][0]["code"] == "duckd_crashed"
    assert any("refused" in line for line in finding["evidence"])
    (work,) = report["work"]
    assert (work["duck"], work["place"]) == (victim.name, "From the desk")
    assert work["likely"] == ["duckd is not running"]
    ready = {cell["duck"]: cell["is_ready"] for cell in report["cells"]}
    assert ready == {well.name: True, also_well.name: True, victim.name: False}
    measured = {row["duck"] for trend in report["trends"] for row in trend["series"]}
    assert measured >= {well.name, also_well.name}, "what the probes measured is drawn"

    page = (fleet.state_dir / "reports" / "latest.html").read_text()
    assert all(text in page for text in (victim.name, finding["title"], "duckd is not running", work["then"]))

    assert duckctl(fleet, "wake", victim.name, "--wait") == 0
    assert probe(fleet)[victim.name] == "healthy"
    capsys.readouterr()
    assert duckctl(fleet, "report", "--json") == 0
    after = json.loads(capsys.readouterr().out)
    assert after["findings"] == []
    assert any(change["duck"] == victim.name for change in after["changes"])
