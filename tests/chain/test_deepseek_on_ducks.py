"""Tiny DeepSeek models through real ducks over UDP against `transformers`, from configs with the published keys."""

import contextlib
import json
from dataclasses import replace

import httpx
import pytest
import torch
from transformers import AutoConfig

from duckfleet.runtime.decoder import indexer
from duckfleet.runtime.dialect import Turn
from duckfleet.runtime.dialect.deepseek_v32 import DeepSeekV32
from duckfleet.runtime.fabric import UdpFabric
from duckfleet.runtime.model import Checkpoint, ChunkStore, load_decoder, prepare
from duckfleet.runtime.model.convert import convert_to_fp8
from duckfleet.runtime.model.reference import reference_model
from tests.chain.lab import lab
from tests.runtime.conftest import train_byte_level, train_deepseek_like
from tests.runtime.fabric.duck_processes import DuckFlock
from tests.runtime.tiny_models import add_mtp_layer, logits_of, random_model, random_tokens, save

# Every key of the published config.json of DeepSeek-V3, its sizes made small. The kinds and ratios are the published
# ones: 8 groups of experts of which 4 are eligible, YaRN by 40 with both mscales, dense layers first, an MTP layer.
V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 144,
    "kv_lora_rank": 32,
    "max_position_embeddings": 4096,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 48,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.44.2",
    "use_cache": True,
    "v_head_dim": 24,
    "vocab_size": 160,
}
V32 = {
    **V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_head_dim": 32,
    "index_n_heads": 16,
    "index_topk": 8,
}
# Each flag that changes the arithmetic, at another value than the published one.
TURNED = {
    "attention_bias": True,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 3,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-4,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "v3": V3,
    "v3-turned": {**V3, **TURNED, "q_lora_rank": None, "rope_scaling": None, "rope_theta": 500},
    "v3.2": V32,
    "v3.2-turned": {**V32, **TURNED, "rope_scaling": {**V3["rope_scaling"], "mscale": 0.7, "beta_fast": 16}},
}
NUM_PREFILL, NUM_DECODE = 64, 32
# Scores differ from those of `transformers` by rounding, some 1e-6 of their size; a choice closer than this is a tie.
LEAST_MARGIN = 2e-5


@pytest.fixture(scope="module")
def flock(tmp_path_factory):
    """Three ducks on two broadcast domains."""
    with DuckFlock(tmp_path_factory.mktemp("ducks"), [2, 1]) as flock:
        yield flock


@contextlib.contextmanager
def decoder_on_ducks(flock, checkpoint, chunks_dir, **cut):
    plan = prepare(checkpoint, "tiny", chunks_dir, tp=3, **cut)
    store = ChunkStore(chunks_dir)
    roster = flock.roster()
    flock.place(roster, plan, {chunk.digest: store.read(chunk) for chunk in plan.chunks})
    with contextlib.closing(UdpFabric(roster, plan, flock.keys, deadline_s=30.0)) as fabric:
        yield plan, load_decoder(checkpoint, fabric)


def published(folder, config, tokenizer=None):
    """(model of `transformers` with random weights, folder of a checkpoint whose config.json is `config` itself)"""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = random_model(AutoConfig.from_pretrained(folder))
    save(model, folder)
    if config["num_nextn_predict_layers"]:
        add_mtp_layer(folder, config["num_hidden_layers"], config["hidden_size"])
    (folder / "config.json").write_text(json.dumps(config))
    (tokenizer or train_byte_level()).save_pretrained(folder)
    return model, folder


def all_logits(decoder, tokens, chunk_tokens):
    """[len(tokens), vocab]: a prefill, then one token at a time."""
    decoder.chunk_tokens = chunk_tokens
    cache = decoder.new_cache(len(tokens))
    rows = [decoder.forward(tokens[:NUM_PREFILL], cache, all_logits=True)]
    rows += [decoder.forward([token], cache) for token in tokens[NUM_PREFILL:]]
    return torch.cat(rows)


def assert_equal(logits, expected):
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    p, q = expected.double().log_softmax(-1), logits.double().log_softmax(-1)
    assert (p.exp() * (p - q)).sum(-1).max() <= 1e-6


@pytest.fixture
def margins(monkeypatch):
    """Of every choice of the indexer that leaves a position out: the least score taken minus the best one left."""
    found = []
    choose = indexer.top_positions

    def watched(scores, top_k):
        if scores.shape[1] > top_k:
            best = scores.topk(top_k + 1, dim=-1).values
            gaps = best[:, top_k - 1] - best[:, top_k]
            found.extend(gaps[best[:, top_k].isfinite()].tolist())
        return choose(scores, top_k)

    monkeypatch.setattr(indexer, "top_positions", watched)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_f32_over_udp_equals_transformers(name, flock, tmp_path, margins, record_property):
    config = CONFIGS[name]
    model, folder = published(tmp_path / "model", config)
    tokens = random_tokens(NUM_PREFILL + NUM_DECODE, config["vocab_size"])
    expected = logits_of(model, tokens)
    with decoder_on_ducks(flock, Checkpoint.open(folder), tmp_path / "chunks", format="f32") as (plan, decoder):
        assert plan.num_layers == 3 + config["num_nextn_predict_layers"]
        for chunk_tokens in (512, 7):
            assert_equal(all_logits(decoder, tokens, chunk_tokens), expected)
    if "index_topk" not in config:
        assert not margins
        return
    # Each of 3 layers chooses for every token past the eighth, in two passes; the choice is never near a tie.
    assert len(margins) == 2 * 3 * (len(tokens) - 8)
    record_property("smallest index margin", min(margins))
    print(f"{name}: {len(margins)} choices of 8, smallest margin {min(margins):.2e}")
    assert min(margins) > LEAST_MARGIN


def test_the_indexer_matters(tmp_path, flock):
    """Without it the same weights give other logits from the ninth token on."""
    _, folder = published(tmp_path / "model", V32)
    tokens = random_tokens(NUM_PREFILL, V32["vocab_size"])
    checkpoint = Checkpoint.open(folder)
    with decoder_on_ducks(flock, checkpoint, tmp_path / "chunks", format="f32") as (_, sparse):
        dense_layers = tuple(
            replace(layer, attention=replace(layer.attention, indexer=None)) for layer in checkpoint.config.layers
        )
        dense = load_decoder(checkpoint, sparse.fabric)
        dense_config = replace(checkpoint.config, layers=dense_layers)
        for layer, spec in zip(dense._layers, dense_config.layers, strict=True):
            layer.attention._spec, layer.attention._indexer = spec.attention, None
        chosen = sparse.forward(tokens, sparse.new_cache(64), all_logits=True)
        everything = dense.forward(tokens, dense.new_cache(64), all_logits=True)
    difference = (chosen - everything).abs().amax(-1)
    assert difference[:8].max() < 1e-5
    assert difference[16:].min() > 1e-2


@pytest.mark.parametrize("name", ["v3", "v3.2"])
def test_fp8_over_udp_equals_its_dequantised_reference(name, flock, tmp_path):
    _, folder = published(tmp_path / "model", CONFIGS[name])
    convert_to_fp8(Checkpoint.open(folder), tmp_path / "fp8")
    checkpoint = Checkpoint.open(tmp_path / "fp8")
    stored = checkpoint.raw_config["quantization_config"]
    assert stored["fmt"] == "e4m3" and stored["weight_block_size"] == [128, 128]
    tokens = random_tokens(NUM_PREFILL + NUM_DECODE, CONFIGS[name]["vocab_size"])
    expected = logits_of(reference_model(checkpoint), tokens)
    with decoder_on_ducks(flock, checkpoint, tmp_path / "chunks") as (plan, decoder):
        assert plan.format == "e4m3"
        for chunk_tokens in (512, 7):
            assert_equal(all_logits(decoder, tokens, chunk_tokens), expected)


def test_v32_is_served_in_its_own_dialect(tmp_path):
    """pull, place and serve by the commands, on three ducks: what it thinks is what `transformers` says it does."""
    tokenizer = train_deepseek_like()
    vocabulary = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model, folder = published(tmp_path / "model", {**V32, **vocabulary}, tokenizer)
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12}
    with lab(tmp_path / "state") as made:
        made.run("model", "pull", str(folder), "--name", "tiny")
        made.bring_up(3, 2, "tiny", "--format", "f32")
        with made.serve("--ctx", "512", "--deadline", "30") as url:
            answers = [
                httpx.post(f"{url}/v1/chat/completions", json={**asked, **more}, timeout=120).json()
                for more in ({"thinking": {"type": "enabled"}}, {})
            ]
    for answer, thinking in zip(answers, (True, False), strict=True):
        prompt = tokenizer.encode(DeepSeekV32().encode([Turn("user", "hello")], thinking=thinking))
        said = greedy(model, prompt, 12)
        reader = DeepSeekV32().reader(thinking=thinking)
        text = tokenizer.decode(said, skip_special_tokens=True).replace("\ufffd", "")  # bytes that are no character
        reply = reader.push(text).then(reader.finish())
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"] or "", message["content"]) == (reply.reasoning, reply.content)
        assert answer["usage"]["prompt_tokens"] == len(prompt)


def greedy(model, prompt, num_tokens):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_tokens:
        token = int(logits_of(model, tokens)[-1].argmax())
        if token == model.config.eos_token_id:
            break
        tokens.append(token)
    return tokens[len(prompt) :]
