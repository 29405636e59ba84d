"""The real model on four real ducks, by the real commands, against `transformers` on the same rounded weights."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import torch

from duckfleet.fleet.cli_demo import DEFAULT_QUESTION
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.musters import load_current
from duckfleet.inventory.plan import FORMATS
from duckfleet.runtime.fabric import UdpFabric
from duckfleet.runtime.model import Checkpoint, load_decoder, load_tokenizer
from duckfleet.runtime.model.evaluate import texts
from duckfleet.runtime.model.reference import reference_model
from duckfleet.runtime.planner import plan_from_json
from tests.chain.lab import Lab, lab

QUESTION = [{"role": "user", "content": "Tell me about ducks in two sentences."}]


@pytest.fixture(scope="module")
def four_ducks(state: Path):
    with lab(state) as made:
        made.run("lab", "up", "--ducks", "4")
        made.run("wake", "--wait")
        made.run("probe")
        yield made


def greedy_reference(checkpoint: Checkpoint, format: str, question: list[dict[str, str]], num_tokens: int) -> str:
    tokenizer = load_tokenizer(checkpoint)
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True)["input_ids"]
    model = reference_model(checkpoint, format)
    with torch.inference_mode():
        said = model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)[0][len(prompt) :]
    return tokenizer.decode(said, skip_special_tokens=True)


@pytest.mark.parametrize("format", FORMATS)
def test_logits_over_udp_equal_those_of_transformers(
    four_ducks: Lab, smollm2_checkpoint: Checkpoint, format: str
) -> None:
    four_ducks.run("place", "smollm2", "--format", format)
    fleet = FleetContext(state_dir=four_ducks.state)
    standing = load_current(fleet.rosters_dir, fleet.keys)
    plan = plan_from_json(standing.plan_text)
    assert plan.format == format and plan.tp == 4
    ids = load_tokenizer(smollm2_checkpoint).encode(texts()["story"])[:64]
    with contextlib.closing(UdpFabric(standing.roster, plan, fleet.keys, deadline_s=20)) as fabric:
        decoder = load_decoder(smollm2_checkpoint, fabric)
        logits = decoder.forward(ids, decoder.new_cache(64), all_logits=True)
    with torch.inference_mode():
        expected = reference_model(smollm2_checkpoint, format)(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("format", "question"),
    [("f32", QUESTION), ("e4m3", [{"role": "user", "content": DEFAULT_QUESTION}])],
    ids=["f32", "as the demo asks"],
)
def test_served_greedy_tokens_equal_those_of_transformers(
    four_ducks: Lab, smollm2_checkpoint: Checkpoint, format: str, question: list[dict[str, str]]
) -> None:
    four_ducks.run("place", "smollm2", "--format", format)
    with four_ducks.serve() as url:
        body = {"model": "smollm2-135m", "messages": question, "temperature": 0, "max_tokens": 32, "stream": True}
        assert "served already" in four_ducks.run("serve", "--port", "0", expect=2)
        assert url in four_ducks.run("serve", "--port", "0", expect=2)
        said = "".join(streamed(url, body))  # the second server took nothing from the first
    assert said == greedy_reference(smollm2_checkpoint, format, question, 32)


def test_a_host_with_other_keys_does_not_make_ducks_lost(four_ducks: Lab) -> None:
    before = [duck["state"] for duck in four_ducks.json("status")]
    four_ducks.run("--no-auth", "probe", expect=3)
    assert [duck["state"] for duck in four_ducks.json("status")] == before
    assert "lost" not in before


def test_doctor_finds_our_own_daemon_well(four_ducks: Lab) -> None:
    command = four_ducks.command("doctor", "--json")
    findings = json.loads(
        subprocess.run(command, capture_output=True, text=True).stdout
    )  # 1 where the host lacks a thing
    assert {finding["subject"]: finding["verdict"] for finding in findings}["duckd"] == "good"


def test_a_second_placement_moves_nothing(four_ducks: Lab) -> None:
    four_ducks.run("place", "smollm2", "--format", "e4m3")
    again = four_ducks.json("place", "smollm2", "--format", "e4m3")
    assert sum(duck["moved_bytes"] for duck in again["ducks"]) == 0


def test_a_killed_duck_costs_no_request_and_killed_ducks_are_named_and_the_server_lives(four_ducks: Lab) -> None:
    four_ducks.run("place", "smollm2", "--format", "e4m3")
    pids = four_ducks.duckd_pids()
    victim = sorted(pids)[2]
    body = {
        "model": "smollm2-135m",
        "messages": QUESTION,
        "max_tokens": 400,
        "stream": True,
        "seed": 1,
        "temperature": 1.5,
    }
    with four_ducks.serve("--deadline", "2") as url:
        seen = 0
        error = ""
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if "error" in line and line.startswith("data: {") and "error" in json.loads(line[6:]):
                    error = json.loads(line[6:])["error"]["message"]
                elif line.startswith("data: {"):
                    seen += 1
                    if seen == 3:
                        os.kill(pids[victim], signal.SIGKILL)
        assert not error and seen > 100, f"after {seen} events: {error!r}"
        assert re.search(rf"{victim} .* lost ", four_ducks.run("status", expect=3))
        for pid in four_ducks.duckd_pids().values():
            os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        error = ""
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if "error" in line:
                    error = line
        assert "duck1101" in error and time.monotonic() - begun < 30
        assert httpx.get(f"{url}/health", timeout=20).status_code in (200, 503)
        refused = httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": False}, timeout=60)
        assert refused.status_code in (500, 502, 503) and "duck1101" in refused.json()["error"]["message"]
    assert victim in four_ducks.run("serve", "--port", "0", expect=1)
    four_ducks.run("probe", expect=3)
    assert victim in four_ducks.run("serve", "--port", "0", expect=1)
    four_ducks.run("wake", "--wait")
    four_ducks.run("probe")
    four_ducks.run("place", "smollm2", "--format", "e4m3")
    with four_ducks.serve() as url:
        whole = {"model": "smollm2-135m", "messages": QUESTION, "temperature": 0, "max_tokens": 8}
        assert httpx.post(f"{url}/v1/chat/completions", json=whole, timeout=60).status_code == 200


def streamed(url: str, body: dict[str, object]):
    """The pieces of text of a streamed chat completion."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                yield choice["delta"].get("content") or ""
