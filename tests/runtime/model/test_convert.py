"""FP8 checkpoints of our own making: the published layout, and the same model after it."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig

from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.model import Checkpoint, ChunkStore, ModelStore, load_decoder, load_tokenizer, prepare
from duckfleet.runtime.model.convert import convert_to_fp8
from duckfleet.runtime.model.evaluate import evaluate, texts
from duckfleet.runtime.model.reference import reference_model
from tests.runtime.tiny_models import MOE, QWEN3, logits_of, random_model, random_tokens, save


@pytest.fixture
def original(tmp_path, byte_level_tokenizer):
    config = Qwen3MoeConfig(**{**QWEN3, **MOE, "hidden_size": 160, "moe_intermediate_size": 144}, mlp_only_layers=[1])
    folder = save(random_model(config), tmp_path / "original")
    byte_level_tokenizer.save_pretrained(folder)
    return Checkpoint.open(folder)


@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 300_000])
def test_the_layout_is_the_published_one(original, tmp_path, max_shard_bytes):
    folder = tmp_path / "fp8"
    convert_to_fp8(original, folder, max_shard_bytes=max_shard_bytes)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"] == {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
    files = sorted(folder.glob("*.safetensors"))
    assert (len(files) > 1) == (folder / "model.safetensors.index.json").exists() == (max_shard_bytes < 1 << 30)
    assert all(f.stat().st_size < max_shard_bytes + 20_000 for f in files)
    tensors = {n: t for f in files for n, t in load_file(f).items()}
    name = "model.layers.0.mlp.experts.5.up_proj.weight"
    assert tensors[name].dtype == torch.float8_e4m3fn
    assert tensors[f"{name}_scale_inv"].shape == (2, 2) and tensors[f"{name}_scale_inv"].dtype == torch.float32
    assert tensors["model.layers.0.self_attn.q_proj.weight"].dtype == torch.float8_e4m3fn
    for kept in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight", "model.norm.weight"):
        assert tensors[kept].dtype == torch.float32
        np.testing.assert_array_equal(tensors[kept].numpy(), original.read(kept).to_f32())
    assert load_tokenizer(Checkpoint.open(folder)).decode([5]) == load_tokenizer(original).decode([5])


@pytest.mark.parametrize("tp", [1, 2, 3, 5])
@pytest.mark.parametrize("format", ["e4m3", "fp9"])
def test_an_fp8_checkpoint_equals_its_dequantised_reference(original, tmp_path, tp, format):
    """Shards of 144 / tp columns are narrower than a tile and share its scale; the attention stays FP8 too."""
    convert_to_fp8(original, tmp_path / "fp8")
    checkpoint = Checkpoint.open(tmp_path / "fp8")
    plan = prepare(checkpoint, "tiny", tmp_path / "chunks", tp=tp, format=format)
    assert checkpoint.native_format == "e4m3"
    decoder = load_decoder(checkpoint, LocalFabric(plan, ChunkStore(tmp_path / "chunks").read))
    tokens = random_tokens(48, 112)
    expected = logits_of(reference_model(checkpoint), tokens)
    cache = decoder.new_cache(48)
    logits = [decoder.forward(tokens[:16], cache, all_logits=True)]
    logits += [decoder.forward([t], cache) for t in tokens[16:]]
    torch.testing.assert_close(torch.cat(logits), expected, atol=1e-4, rtol=0)
    p, q = expected.double().log_softmax(-1), torch.cat(logits).double().log_softmax(-1)
    assert (p.exp() * (p - q)).sum(-1).max() <= 1e-6


def test_the_store_keeps_both(original, tmp_path):
    store = ModelStore(tmp_path / "models")
    store.pull(str(original.path), name="m")
    twin = store.convert("m")
    assert (twin.name, twin.source) == ("m-fp8", "fp8 of m")
    assert [m.name for m in store.list()] == ["m", "m-fp8"]
    assert Checkpoint.open(twin.path).native_format == "e4m3"


def test_smollm2_as_fp8_keeps_its_perplexity(smollm2, smollm2_in_memory, tmp_path):
    convert_to_fp8(smollm2_in_memory, tmp_path / "fp8")
    fp8 = Checkpoint.open(tmp_path / "fp8")
    assert fp8.tensors["model.layers.7.self_attn.k_proj.weight"].stored == "e4m3"
    tokenizer = load_tokenizer(fp8)
    assert tokenizer.chat_template == load_tokenizer(smollm2).chat_template
    short = {name: text[:500] for name, text in texts().items()}
    before = evaluate(smollm2_in_memory, tokenizer, "smollm2", tmp_path / "chunks", (), on=short)
    after = evaluate(fp8, tokenizer, "smollm2-fp8", tmp_path / "chunks", (), on=short)
    for f32, rounded in zip(before, after, strict=True):
        assert rounded.perplexity == pytest.approx(f32.perplexity, rel=0.05), rounded.text
