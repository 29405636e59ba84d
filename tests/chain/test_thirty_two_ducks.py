"""A tiny model served on 32 process ducks in four broadcast domains, its log-probabilities against `transformers`."""

import contextlib
import math
from pathlib import Path

import httpx
import torch
from transformers import Qwen3Config

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.musters import load_current
from duckfleet.runtime.fabric import UdpFabric
from duckfleet.runtime.model import Checkpoint, load_decoder
from duckfleet.runtime.planner import plan_from_json
from tests.chain.lab import lab
from tests.runtime.conftest import train_byte_level
from tests.runtime.tiny_models import QWEN3, logits_of, random_model, random_tokens, save


def test_tiny_model_on_32_ducks_of_four_domains(tmp_path: Path) -> None:
    tokenizer = train_byte_level()
    model = random_model(Qwen3Config(**{**QWEN3, "intermediate_size": 640, "vocab_size": len(tokenizer)}))
    folder = save(model, tmp_path / "tiny")
    tokenizer.save_pretrained(folder)
    tokens = random_tokens(24, len(tokenizer))
    with lab(tmp_path / "state") as made:
        made.run("model", "pull", str(folder), "--name", "tiny")
        made.bring_up(32, 4, "tiny", "--format", "f32")
        addresses = sorted(duck["address"] for duck in made.json("lab", "status")["ducks"])
        assert addresses == sorted(f"127.21.{d}.{n}" for d in range(1, 5) for n in range(101, 109))
        fleet = FleetContext(state_dir=made.state)
        standing = load_current(fleet.rosters_dir, fleet.keys)
        assert standing.roster.tp == 32 and len(standing.roster.domains) == 4
        checkpoint = Checkpoint.open(folder)
        plan = plan_from_json(standing.plan_text)
        with contextlib.closing(UdpFabric(standing.roster, plan, fleet.keys, deadline_s=30)) as fabric:
            decoder = load_decoder(checkpoint, fabric)
            cache = decoder.new_cache(len(tokens))
            rows = [decoder.forward(tokens[:16], cache, all_logits=True)]
            rows += [decoder.forward([token], cache) for token in tokens[16:]]
        torch.testing.assert_close(torch.cat(rows), logits_of(model, tokens), atol=1e-4, rtol=0)
        prompt = "a fleet of ducks"
        with made.serve("--deadline", "30", "--ctx", "256") as url:
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        expected = logits_of(model, tokenizer.encode(prompt))[-1].log_softmax(-1)
        assert choice["text"] == tokenizer.decode([int(expected.argmax())])
        assert math.isclose(choice["logprobs"]["token_logprobs"][0], float(expected.max()), abs_tol=1e-4)
