"""DeepSeek's published layout: FP8 with block scales, and a layer for multi-token prediction on top."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV32Config

from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.model import BadCheckpoint, Checkpoint, ChunkStore, load_decoder, prepare
from duckfleet.runtime.model.convert import convert_to_fp8
from duckfleet.runtime.model.reference import reference_model
from tests.runtime.tiny_models import (
    DEEPSEEK,
    DEEPSEEK_YARN,
    INDEXER,
    add_mtp_layer,
    logits_of,
    random_model,
    random_tokens,
    save,
)

CONFIGS = {
    "v3": DeepseekV3Config(**DEEPSEEK, rope_parameters=dict(DEEPSEEK_YARN)),
    "v3.2": DeepseekV32Config(**DEEPSEEK, **INDEXER, rope_parameters=dict(DEEPSEEK_YARN), num_nextn_predict_layers=1),
}
MTP = "model.layers.3."


@pytest.fixture(params=CONFIGS)
def folder(request, tmp_path, byte_level_tokenizer):
    folder = save(random_model(CONFIGS[request.param]), tmp_path / "model")
    byte_level_tokenizer.save_pretrained(folder)
    return folder


def logits(checkpoint, chunks, tokens, tp):
    plan = prepare(checkpoint, "tiny", chunks, tp=tp)
    decoder = load_decoder(checkpoint, LocalFabric(plan, ChunkStore(chunks).read))
    cache = decoder.new_cache(len(tokens))
    rows = [decoder.forward(tokens[:32], cache, all_logits=True)] + [decoder.forward([t], cache) for t in tokens[32:]]
    return plan, decoder, torch.cat(rows)


@pytest.mark.parametrize("folder", ["v3.2"], indirect=True)
def test_rounding_with_powers_of_two_is_to_nearest(folder, tmp_path):
    """No weight is further from what is stored than half a step of e4m3 at its tile's scale; none overflows."""
    original = Checkpoint.open(folder)
    convert_to_fp8(original, tmp_path / "fp8")
    made = Checkpoint.open(tmp_path / "fp8")
    name = "model.layers.0.mlp.gate_proj.weight"
    before, after = (torch.from_numpy(c.read(name).to_f32().copy()) for c in (original, made))
    step = torch.exp2(torch.floor(torch.log2(before.abs())) - 3)  # 3 bits of mantissa; coarser only where subnormal
    least = float(before.abs().max()) / 448 * 2**-9 * 2
    assert ((after - before).abs() <= (step / 2).clamp(min=least)).all()


@pytest.mark.parametrize("tp", [1, 3])
def test_fp8_equals_its_dequantised_reference(folder, tmp_path, tp):
    convert_to_fp8(Checkpoint.open(folder), tmp_path / "fp8")
    checkpoint = Checkpoint.open(tmp_path / "fp8")
    attention = "model.layers.1.self_attn."
    assert checkpoint.tensors[f"{attention}kv_b_proj.weight"].stored == "e4m3"
    assert checkpoint.tensors[f"{attention}kv_a_proj_with_mqa.weight"].stored == "e4m3"
    assert checkpoint.tensors["model.layers.1.mlp.gate.weight"].stored == "f32"
    if f"{attention}indexer.wk.weight" in checkpoint.tensors:
        assert checkpoint.tensors[f"{attention}indexer.wk.weight"].stored == "e4m3"
        assert checkpoint.tensors[f"{attention}indexer.weights_proj.weight"].stored == "f32"
    scales = {n: t for n, t in load_file(tmp_path / "fp8" / "model.safetensors").items() if n.endswith("_scale_inv")}
    are_powers_of_two = all(torch.equal(torch.frexp(t).mantissa, torch.full_like(t, 0.5)) for t in scales.values())
    is_v32 = checkpoint.config.model_type == "deepseek_v32"  # published with "ue8m0" scales, stored as f32
    assert are_powers_of_two == is_v32 == ("scale_fmt" in checkpoint.raw_config["quantization_config"])
    tokens = random_tokens(64, 112)
    plan, _, ours = logits(checkpoint, tmp_path / "chunks", tokens, tp)
    assert plan.format == "e4m3"
    expected = logits_of(reference_model(checkpoint), tokens)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    assert (p.exp() * (p - q)).sum(-1).max() <= 1e-6


def test_a_layer_for_multi_token_prediction_is_loaded_and_placed(folder, tmp_path):
    tokens = random_tokens(48, 112)
    without, _, before = logits(Checkpoint.open(folder), tmp_path / "before", tokens, 2)
    assert without.num_layers == 3
    tensors = add_mtp_layer(folder, 3, 64)
    checkpoint = Checkpoint.open(folder)
    assert len(checkpoint.config.mtp_layers) == 1
    plan, decoder, after = logits(checkpoint, tmp_path / "after", tokens, 2)
    assert plan.num_layers == 4 and {c.layer for c in plan.chunks} == {0, 1, 2, 3}
    torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    (mtp,) = decoder.mtp
    torch.testing.assert_close(mtp.hidden_norm, torch.full((64,), 2.0))
    x = torch.randn(2, 128)
    torch.testing.assert_close(mtp.projection(x), x @ tensors[f"{MTP}eh_proj.weight"].T, atol=1e-4, rtol=1e-4)


def test_a_torn_mtp_layer_is_named(folder):
    tensors = add_mtp_layer(folder, 3, 64)
    del tensors[f"{MTP}eh_proj.weight"], tensors[f"{MTP}mlp.experts.7.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=rf"2 missing: {MTP}eh_proj.weight, {MTP}mlp.experts.7.up_proj.weight"):
        _ = Checkpoint.open(folder).tensors
