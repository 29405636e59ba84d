"""The demo takes everything down, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duckfleet.fleet.demo_report import Answer, DuckShare, FabricCounts, WordWrap, make_report
from duckfleet.fleet.lab.ownership import processes_of_lab
from tests.fleet.tiny_checkpoint import make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def start_demo(state: Path, checkpoint: Path, *options: str) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DUCKFLEET_")}
    command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(state), "demo", "--model", str(checkpoint)]
    return subprocess.Popen(
        [*command, "--ducks", "2", "--max-tokens", "4", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=state,
        env={**kept, "COLUMNS": "80"},
        start_new_session=True,  # so that ctrl-C can be sent to all of it, as a terminal does
    )


def read_until(demo: subprocess.Popen[str], start: str) -> str:
    assert demo.stdout is not None
    seen = ""
    while start not in seen:
        char = demo.stdout.read(1)
        assert char, f"the demo ended before {start!r}:\n{seen}"
        seen += char
    return seen


def assert_nothing_is_left(state: Path) -> None:
    until = time.monotonic() + 10
    while found := processes_of_lab(state / "demo" / "lab"):
        assert time.monotonic() < until, found
        time.sleep(0.05)
    assert not (state / "demo" / "lab").exists()


def test_it_shows_the_chain_and_ends_well(tmp_path: Path, checkpoint: Path) -> None:
    demo = start_demo(tmp_path, checkpoint)
    out, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, out
    shown = [line for line in out.splitlines() if line.startswith(("duckctl ", "POST "))]
    verbs = [line.split()[1] for line in shown]
    assert verbs[:6] == ["model", "lab", "wake", "probe", "place", "serve"]
    assert "tok/s" in out
    assert "slowest" in out
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("moment", "number"),
    [("duckctl wake", signal.SIGINT), ("duckctl place", signal.SIGTERM), ("POST ", signal.SIGINT)],
    ids=["ctrl-C at wake", "SIGTERM at place", "ctrl-C while it answers"],
)
def test_interrupted_it_leaves_nothing_behind(
    tmp_path: Path, checkpoint: Path, moment: str, number: signal.Signals
) -> None:
    demo = start_demo(tmp_path, checkpoint, "--max-tokens", "3000")
    read_until(demo, moment)
    if number == signal.SIGINT:
        os.killpg(demo.pid, number)
    else:
        demo.send_signal(number)
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, out
    assert "Traceback" not in out
    assert_nothing_is_left(tmp_path)


def test_a_failing_step_ends_it_with_that_steps_code_and_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, tmp_path / "no-such-model")
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 2, out
    assert "the demo stopped at `duckctl model pull" in out
    assert_nothing_is_left(tmp_path)


def test_killed_it_is_cleaned_up_by_the_next_lab_down(tmp_path: Path, checkpoint: Path) -> None:
    demo = start_demo(tmp_path, checkpoint)
    read_until(demo, "duckctl probe")
    demo.kill()
    demo.communicate()
    command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(tmp_path / "demo"), "lab", "down"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0
    assert_nothing_is_left(tmp_path)


METRICS = """\
# TYPE duckfleet_fabric_forwards untyped
duckfleet_fabric_forwards {forwards}
# TYPE duckfleet_fabric_seconds counter
duckfleet_fabric_seconds_total{{part="prepare"}} {prepare}
duckfleet_fabric_seconds_total{{part="send"}} 0.5
duckfleet_fabric_seconds_total{{part="wait"}} 1.0
duckfleet_fabric_seconds_total{{part="fetch"}} 0.0
# TYPE duckfleet_fabric_duck_times_last untyped
duckfleet_fabric_duck_times_last{{duck="ann"}} {ann}
duckfleet_fabric_duck_times_last{{duck="bob"}} {bob}
"""


def test_the_report_is_what_lies_between_two_looks() -> None:
    before = FabricCounts.from_metrics(METRICS.format(forwards=10, prepare=0.25, ann=9, bob=1))
    after = FabricCounts.from_metrics(METRICS.format(forwards=110, prepare=0.75, ann=29, bob=81))
    answer = Answer("hello", 11, 0.5, 2.5)
    shares = [DuckShare("ann", 7, 1.0), DuckShare("bob", 8, 2.0)]
    report = make_report(answer, before, after, shares)
    assert report.num_forwards == 100
    assert report.part_us["prepare"] == pytest.approx(5000)
    assert report.part_us["wait"] == 0
    assert [share.last_share for share in report.shares] == [0.2, 0.8]
    assert report.slowest_duck == "bob"
    assert answer.tokens_per_s == 5.0
    assert Answer("", 1, 0.5, 0.5).tokens_per_s == 0.0


def test_metrics_without_a_fabric_count_as_nothing() -> None:
    assert FabricCounts.from_metrics("").num_forwards == 0


def test_words_are_not_broken() -> None:
    wrap = WordWrap(10)
    pieces = ["the qu", "ick ", "brown", " duck\n", "jumps", "over-everything"]
    shown = "".join(wrap.feed(piece) for piece in pieces) + wrap.flush()
    assert shown == "the quick \nbrown duck\njumpsover-everything"
