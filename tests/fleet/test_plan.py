"""`duckctl plan`: the flagship on the reference fleet, and on one that is too small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def plan(*arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from duckfleet.fleet.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--state", str(state), "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_budget_adds_up_to_the_published_checkpoint(tmp_path: Path) -> None:
    done = plan("deepseek-v3.2", "--ctx", "16384", "--json", state=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = dict(json.loads(done.stdout)["lines"])
    assert lines["weights in all"] == pytest.approx(lines["the published checkpoint"], rel=0.01)
    assert lines["host: KV cache per 1,000 tokens"] == 1000 * 62 * 4 * (512 + 64 + 128)
    ducks = json.loads(done.stdout)["ducks"]
    assert len(ducks) == 32
    for duck in ducks:
        assert duck["slice_bytes"] + duck["replica_bytes"] + duck["headroom_bytes"] + (3 << 29) == duck["ram_bytes"]
        assert 0.5 < duck["covered"] < 0.6 and duck["headroom_bytes"] > 0


def test_a_fleet_that_is_too_small_is_told_so(tmp_path: Path) -> None:
    done = plan("deepseek-v3.2", "--ducks", "20", state=tmp_path)
    assert done.returncode == 1
    assert "needs 31.4 GiB on each of 20 beside 1.5 for its system; duck 0 has 32.0" in done.stdout


def test_an_unknown_model_is_answered_with_the_known(tmp_path: Path) -> None:
    done = plan("gpt-17", state=tmp_path)
    assert done.returncode == 2 and "qwen3-30b-a3b" in done.stderr


def test_the_default_context_is_one_that_the_model_has(tmp_path: Path) -> None:
    done = plan("smollm2", "--json", state=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(name.startswith("host: KV cache of 2048 tokens") for name, _ in json.loads(done.stdout)["lines"])
