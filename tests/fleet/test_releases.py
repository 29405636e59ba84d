"""Host and duckd of different versions say so, and what to do: another release works on, another protocol does not."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckfleet.fleet.cli import run
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.roster import RosterEntry
from duckfleet.runtime.control import ControlClient, host_release
from duckfleet.runtime.fabric.session import agree
from duckfleet.runtime.wire import ControlHeader, ControlType, IdentityReply
from tests.runtime.fabric.lying_duck import LyingDuck

ADDRESS, DATA_PORT = "127.77.9.101", 5000
IDENTITY = IdentityReply(
    *(1, 0, 1, 0, 3, 1, 1, 1, 64, 1, 1, 4096, 7, 9, 1 << 30, 1 << 29, 1, 1, DATA_PORT, 7, 7),
    model_digest=bytes(32),
    shard_digest=bytes(32),
    kernels="avx2",
    duckd_version="0.0.9",
    hostname="old",
)
PROBE = {"memory": {"total_bytes": 32 << 30}, "cpu": {"model": "N100"}, "measured": {}}
ANSWERS = {
    ControlType.IDENTITY: (ControlType.IDENTITY_REPLY, IDENTITY.pack()),
    ControlType.PROBE: (ControlType.PROBE_REPLY, json.dumps(PROBE).encode()),
}


def old_release(header: ControlHeader, _payload: bytes) -> bytes:
    kind, payload = ANSWERS[ControlType(header.type)]
    return ControlHeader(type=kind, request_id=header.request_id, length=len(payload)).pack() + payload


def as_it_is(data: bytes) -> tuple[bytes, bool]:
    return data, False


def next_protocol(data: bytes) -> tuple[bytes, bool]:
    header = ControlHeader.unpack(data[: ControlHeader.num_bytes()])
    return dataclasses.replace(header, version=header.version + 1).pack() + data[ControlHeader.num_bytes() :], False


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The options of a fleet whose one duck is of another release."""
    monkeypatch.chdir(tmp_path)
    with LyingDuck(ADDRESS, None, old_release, as_it_is) as duck:
        yield ["--no-auth", "--state", str(tmp_path), "--site", str(site_with(tmp_path, duck.port))]


def site_with(folder: Path, control_port: int) -> Path:
    site = folder / "duckfleet.toml"
    site.write_text(
        f'[fleet]\nname = "x"\ncontrol_port = {control_port}\n\n'
        '[[domains]]\nname = "d1"\ninterface = "lo"\nhost_address = "127.77.9.1"\nnodes = "127.77.9.[101-108]"\n\n'
        f'[[ducks]]\nmac = "00:e0:4c:00:00:01"\naddress = "{ADDRESS}"\nname = "ann"\n'
    )
    return site


def test_doctor_probe_and_status_say_it(fleet: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run([*fleet, "doctor", "--json"])
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["duck ann"]["verdict"] == "warning"
    assert f"runs duckd 0.0.9, this host is duckfleet {host_release()}" in findings["duck ann"]["detail"]
    assert "duckctl image build" in findings["duck ann"]["detail"]
    assert findings["ducks"]["detail"] == "1 of 1 answer as ours"

    assert run([*fleet, "probe", "--json"]) == 0  # no reason to leave the duck out
    assert json.loads(capsys.readouterr().out)[0]["facts"]["duckd_version"] == "0.0.9"
    assert run([*fleet, "status", "--json"]) == 0
    assert "boot the duck from a new image" in json.loads(capsys.readouterr().out)[0]["release"]


def test_another_protocol_is_an_error_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with LyingDuck(ADDRESS, None, old_release, next_protocol) as duck:
        fleet = ["--no-auth", "--state", str(tmp_path), "--site", str(site_with(tmp_path, duck.port))]
        assert run([*fleet, "doctor", "--json"]) == 1
        findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
        assert findings["duck ann"]["verdict"] == "bad"
        assert "duck ann speaks protocol version 2, this host 1: install the same" in findings["duck ann"]["detail"]
        assert run([*fleet, "probe", "--json"]) == 3
        assert "speaks protocol version 2" in capsys.readouterr().out
        assert run([*fleet, "wake", "--json"]) == 3  # it is awake: no packet, and no duck called lost
        assert "speaks protocol version 2" in capsys.readouterr().out
        run([*fleet, "status", "--json"])
        assert json.loads(capsys.readouterr().out)[0]["state"] == "unknown"


def test_serve_says_it_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with LyingDuck(ADDRESS, None, old_release, as_it_is) as duck, ControlClient(ADDRESS, duck.port, None) as client:
        identity = client.identity()
    entry = RosterEntry(0, "ann", ADDRESS, "d1", duck.port, DATA_PORT, 1 << 30, 1e9, 4, 0.0)
    plan = ShardPlan(9, "m", "ab" * 32, "f32", 64, 1, 1, 1, (Chunk(0, 0, 0, (), 64, "cd" * 32),), ((0,),))
    with caplog.at_level(logging.WARNING):
        agree(plan, [entry], [identity], "f32")
    assert "duck ann runs duckd 0.0.9" in caplog.text and "update this host" in caplog.text
