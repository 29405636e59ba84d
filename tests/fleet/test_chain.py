"""The chain as an operator goes through it, every step a real duckctl, from wake to a lost duck."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from duckfleet.fleet.announcement import Announcement, running_server
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab.ownership import processes_of_lab
from duckfleet.fleet.lab.processes import lab_status
from duckfleet.fleet.reach import connect
from tests.fleet.tiny_checkpoint import make_checkpoint


@dataclass(frozen=True)
class Operator:
    """Someone at a shell with a state directory."""

    state: Path

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("DUCKFLEET_")}
        return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(self.state), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=240,
            cwd=self.state,
            env=self.environment(),
        )

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> object:
        return json.loads(self.ok(*arguments, "--json"))

    @contextmanager
    def server(self, *options: str) -> Iterator[Announcement]:
        with (self.state / "serve.log").open("wb") as log:
            child = subprocess.Popen(
                self.command("serve", "--port", "0", "--ctx", "128", "--threads", "1", *options),
                stderr=log,
                cwd=self.state,
                env=self.environment(),
            )
        try:
            while (found := running_server(self.state)) is None:
                assert child.poll() is None, (self.state / "serve.log").read_text()
                time.sleep(0.05)
            yield found
        finally:
            child.send_signal(signal.SIGINT)  # to the supervisor, where there is one
            assert child.wait(60) == 0, (self.state / "serve.log").read_text()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def operator(tmp_path: Path, checkpoint: Path) -> Iterator[Operator]:
    made = Operator(tmp_path / "state")
    made.state.mkdir()
    made.ok("model", "pull", str(checkpoint))
    yield made
    made.ok("lab", "down")
    assert processes_of_lab(made.state / "lab") == []


def ask(server: Announcement, timeout_s: float = 60.0) -> httpx.Response:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "the quick brown duck"}],
        "max_tokens": 12,
        "temperature": 0,
        "logprobs": True,
    }
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=timeout_s, trust_env=False)


def tokens(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [item["token"] for item in response.json()["choices"][0]["logprobs"]["content"]]


def states(operator: Operator) -> dict[str, str]:
    done = operator.run("status", "--json")
    return {value["duck"]: value["state"] for value in json.loads(done.stdout)}


def test_the_whole_chain(operator: Operator) -> None:
    operator.ok("lab", "up", "--ducks", "3")
    assert operator.run("place", "tiny").returncode == 1  # nobody is awake
    woken = operator.json("wake", "--wait")
    assert [value["state"] for value in woken] == ["up"] * 3
    probed = operator.json("probe")
    assert [value["verdict"] for value in probed] == ["healthy"] * 3
    assert all(value["facts"]["ram_bytes"] > 0 for value in probed)
    assert all(value["facts"]["read_bandwidth_bytes_per_s"] > 0 for value in probed)

    # A process has no clock, card or sensors of its own: nothing to walk to for that.
    operator.ok("explain", "duck1101")

    first = operator.json("place", "tiny")
    assert first["standing"]
    assert all(duck["moved_bytes"] == duck["total_bytes"] > 0 for duck in first["ducks"])
    second = operator.json("place", "tiny")
    assert [duck["moved_bytes"] for duck in second["ducks"]] == [0, 0, 0]
    assert second["generation"] == first["generation"] + 1

    shown = operator.json("roster")
    assert shown["objections"] == []
    assert [entry["rank"] for entry in shown["roster"]["entries"]] == [0, 1, 2]
    assert len(shown["roster"]["signature"]) == 128

    with operator.server() as server:
        assert states(operator) == dict.fromkeys(("duck1101", "duck1102", "duck1103"), "serving")
        said = tokens(ask(server))
        assert len(said) == 12
        # Noise at the host's own port is counted in /metrics and in status, and changes no token.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for own in psutil.Process(server.pid).net_connections("udp"):
                stranger.sendto(b"quack" * 40, own.laddr)
        assert tokens(ask(server)) == said
        assert 'duckfleet_fabric_drops{kind="bad_magic"} 1' in httpx.get(f"{server.url}/metrics", trust_env=False).text
        assert re.search(r"this host +\d+ +bad_magic 1\b", operator.ok("status", "--counters"))
        assert tokens(ask(server)) == said
        again = operator.run("place", "tiny")  # beside a server: it goes on with what it began with
        assert again.returncode == 0 and "restart it to serve this" in again.stderr
        assert set(states(operator).values()) == {"serving"}
        assert tokens(ask(server)) == said
        assert operator.ok("chat", "-m", "the quick brown duck", "--max-tokens", "3", "--temperature", "0").strip()
        metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
        assert 'duckfleet_fabric_duck_replies{duck="duck1103"}' in metrics
    assert set(states(operator).values()) == {"placed"}
    assert running_server(operator.state) is None
    kinds = [event["kind"] for event in operator.json("log", "duck1101")]
    assert kinds == [
        "wake_sent",
        "answered",
        "probe_started",
        "probe_passed",
        "placed",
        "placed",
        "serve_started",
        "placed",
        "serve_ended",
    ]


def test_a_lost_duck_is_named_and_a_short_roster_refused(operator: Operator) -> None:
    operator.ok("lab", "up", "--ducks", "3")
    for step in (("wake", "--wait"), ("probe",), ("place", "tiny", "--replicas", "0")):
        operator.ok(*step)
    fleet = FleetContext(operator.state)
    status = lab_status(fleet.lab_dir)
    assert status is not None
    pid = status.ducks[1].pid
    assert pid is not None
    shutil.rmtree(fleet.chunks_dir)  # nothing to load its part of the model from
    with operator.server("--deadline", "2") as server:
        said = tokens(ask(server))
        os.kill(pid, signal.SIGKILL)
        failed = ask(server)
        assert failed.status_code >= 500
        assert "duck1102" in failed.text
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
        assert "duck1102" in ask(server).text  # the server lives, and says the same again
        deadline_s = time.monotonic() + 30
        while states(operator)["duck1102"] != "lost":  # noted beside the decoding, soon after
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert states(operator)["duck1101"] == "serving"
        noted = [e for e in operator.json("log", "duck1102") if e["kind"] == "went_silent"]  # type: ignore[attr-defined]
        assert len(noted) == 1
        assert "fell silent" in noted[0]["evidence"]["error"]
        assert "prepare the model again" in failed.text

        # The others are asked for what they dropped; hostile bytes are seen in it, by kind.
        domain = fleet.site.domains[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"quack" * 40, (status.ducks[0].address, domain.data_port))
        with socket.create_connection((status.ducks[0].address, domain.control_port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            browser.recv(1)
        counted = json.loads(operator.run("status", "--counters", "--json").stdout)
        by_name = {value["duck"]: value["datagrams"] for value in counted}
        assert by_name["duck1101"]["dropped"]["bad_magic"] >= 1
        assert by_name["duck1101"]["control"]["malformed"] >= 1
        assert "duck1102" in by_name["duck1102"]["error"]
        assert "bad_magic" in operator.run("status", "--counters").stdout

    # It is gone: a probe finds out, and nothing is served without it.
    assert operator.run("probe").returncode == 3
    assert states(operator)["duck1102"] in ("lost", "up")
    done = operator.run("serve", "--port", "0")
    assert done.returncode == 1
    assert "duck1102" in done.stderr
    assert "Traceback" not in done.stderr
    shown = operator.run("roster", "--show", "--json")
    assert shown.returncode == 3
    assert [missing["duck"] for missing in json.loads(shown.stdout)["objections"]] == ["duck1102"]

    # The next plan is cut for two; that is short of the site, and served only when the operator is content with it.
    assert operator.json("place", "tiny")["left_out"][0]["duck"] == "duck1102"
    assert operator.run("serve", "--port", "0").returncode == 1
    operator.ok("roster", "--show", "--min-tp", "2")

    # It comes back, is woken, probed, given its share, and all is as before.
    operator.ok("wake", "--wait", "duck1102")
    operator.ok("probe")
    placed = operator.json("place", "tiny")
    assert len(placed["ducks"]) == 3
    with operator.server() as server:
        assert tokens(ask(server)) == said


def test_a_lost_duck_costs_a_pause_and_is_taken_in_again(operator: Operator) -> None:
    operator.ok("lab", "up", "--ducks", "3")
    for step in (("wake", "--wait"), ("probe",), ("place", "tiny")):
        operator.ok(*step)
    status = lab_status(FleetContext(operator.state).lab_dir)
    assert status is not None
    pid = status.ducks[1].pid
    assert pid is not None

    def wait_for(state: str) -> None:
        deadline_s = time.monotonic() + 60
        while states(operator)["duck1102"] != state:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    with operator.server("--silence-floor", "0.1") as server:
        said = tokens(ask(server))
        os.kill(pid, signal.SIGKILL)
        assert tokens(ask(server)) == said  # its part was loaded by the others while the request waited
        wait_for("lost")
        metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
        assert 'duckfleet_fabric_failover{kind="ducks_missing"} 1.0' in metrics
        shown = operator.run("status")
        assert "failovers: " in shown.stdout
        assert "duck1102 fell silent" in shown.stdout
        operator.ok("wake", "--wait", "duck1102")
        wait_for("serving")
        assert tokens(ask(server)) == said
        metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
        assert 'duckfleet_fabric_failover{kind="ducks_missing"} 0.0' in metrics
    kinds = [event["kind"] for event in operator.json("log")]  # type: ignore[attr-defined]
    assert "failover_taken_over" in kinds
    assert "failover_rejoined" in kinds

    # Nobody serves when it goes again: the next server only starts without it when it may.
    status = lab_status(FleetContext(operator.state).lab_dir)
    assert status is not None
    pid = status.ducks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert operator.run("serve", "--port", "0").returncode == 1
    wait_for("lost")
    assert operator.run("serve", "--port", "0", "--min-tp", "3").returncode == 1
    with operator.server("--min-tp", "2") as server:
        assert tokens(ask(server)) == said


def test_a_killed_server_is_started_again_and_moves_nothing(operator: Operator) -> None:
    operator.ok("lab", "up", "--ducks", "2")
    for step in (("wake", "--wait"), ("probe",), ("place", "tiny")):
        operator.ok(*step)
    fleet = FleetContext(operator.state)

    def received_bytes() -> int:
        total = 0
        for duck in fleet.site.ducks:
            with connect(fleet.site, duck, fleet.keys) as control:
                total += control.stats()["control"]["chunk_bytes_received"]
        return total

    placed_bytes = received_bytes()
    with operator.server("--supervise") as first:
        said = tokens(ask(first))
        os.kill(first.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 120
        while (again := running_server(operator.state)) is None or again.pid == first.pid:
            assert time.monotonic() < deadline_s, (operator.state / "serve.log").read_text()
            time.sleep(0.05)
        assert again.url == first.url
        assert tokens(ask(again)) == said
        assert received_bytes() == placed_bytes > 0
        assert "started again" in (operator.state / "serve.log").read_text()
    assert running_server(operator.state) is None


def test_what_is_stale_changed_or_signed_by_others_is_not_served(operator: Operator) -> None:
    operator.ok("lab", "up", "--ducks", "1")
    for step in (("wake", "--wait"), ("probe",), ("place", "tiny")):
        operator.ok(*step)

    time.sleep(4)
    done = operator.run("serve", "--port", "0", "--max-age", "0.001")  # hours
    assert done.returncode == 1
    assert "was last probed" in done.stderr
    operator.ok("probe")
    before = operator.json("roster", "--show")["roster"]["generation"]
    renewed = operator.json("roster")
    assert renewed["roster"]["generation"] == before + 1
    assert renewed["objections"] == []

    plan = operator.state / "rosters" / str(before + 1) / "plan.json"
    good = plan.read_text()
    plan.write_text(good.replace('"tp":1', '"tp": 1'))
    done = operator.run("serve", "--port", "0")
    assert done.returncode == 2
    assert "does not bear this fleet's signature" in done.stderr
    plan.write_text(good)

    assert "new keys" in operator.ok("keys", "rotate", "--yes")
    done = operator.run("serve", "--port", "0")
    assert done.returncode == 2
    assert "signature" in done.stderr
    operator.ok("wake", "--wait")  # the daemon was ended; it starts with the new keys
    operator.ok("probe")
    assert operator.json("place", "tiny")["standing"]
