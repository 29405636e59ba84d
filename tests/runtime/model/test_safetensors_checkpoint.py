"""Folders of safetensors: shards, types, FP8 with block scales, and everything that can be wrong with them."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Qwen3Config, Qwen3MoeConfig

from duckfleet.runtime.model import BadCheckpoint, Checkpoint, UnsupportedModel
from duckfleet.runtime.model.reference import reference_model
from duckfleet.runtime.model.safetensors_file import read_header
from duckfleet.runtime.model.tensors import E4M3_VALUES, dequantise_e4m3
from tests.runtime.tiny_models import MOE, QWEN3, ROUTED, logits_of, random_model, random_tokens, save


@pytest.fixture(scope="module")
def model():
    return random_model(Qwen3MoeConfig(**QWEN3, **MOE, mlp_only_layers=[0]))


@pytest.fixture
def folder(model, tmp_path):
    return save(model, tmp_path / "m")


def edit(folder, change):
    """Rewrite the tensors of a one-file checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder, file="config.json", **changes):
    path = folder / file
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **changes}))


def same_logits(checkpoint, model):
    tokens = random_tokens(24, 112)
    torch.testing.assert_close(
        logits_of(reference_model(checkpoint), tokens), logits_of(model, tokens), atol=1e-5, rtol=0
    )


def test_one_file(folder, model):
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.native_format == "f32"
    same_logits(checkpoint, model)


def test_many_files_with_an_index(model, tmp_path):
    folder = save(model, tmp_path / "m", max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 5
    same_logits(Checkpoint.open(folder), model)


def test_experts_fused_in_one_tensor(folder, model):
    def fuse(tensors):
        for layer in (1, 2):
            block = f"model.layers.{layer}.mlp.experts"
            take = lambda m: [tensors.pop(f"{block}.{e}.{m}_proj.weight") for e in range(8)]  # noqa: B023, E731
            gate, up, down = take("gate"), take("up"), take("down")
            tensors[f"{block}.gate_up_proj"] = torch.stack([torch.cat(p) for p in zip(gate, up, strict=True)])
            tensors[f"{block}.down_proj"] = torch.stack(down)

    edit(folder, fuse)
    same_logits(Checkpoint.open(folder), model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(folder, dtype):
    edit(folder, lambda t: t.update({n: v.to(dtype) for n, v in t.items()}))
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.native_format == ("bf16" if dtype == torch.bfloat16 else "f32")
    stored = load_file(folder / "model.safetensors")
    for name in checkpoint.tensors:
        np.testing.assert_array_equal(checkpoint.read(name).to_f32(), stored[name].to(torch.float32).numpy())


def test_a_correction_bias_is_a_tensor_like_any_other(tmp_path):
    model = random_model(Glm4MoeConfig(**QWEN3, **ROUTED, num_nextn_predict_layers=1))
    same_logits(Checkpoint.open(save(model, tmp_path / "m")), model)


# --- FP8 ----------------------------------------------------------------------------------------------------


def to_fp8(weight):
    """codes and scale_inv as the published checkpoints have them; edges need not be multiples of 128."""
    rows, cols = weight.shape
    blocks = torch.zeros(-(-rows // 128), -(-cols // 128))
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    for i in range(blocks.shape[0]):
        for j in range(blocks.shape[1]):
            tile = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            blocks[i, j] = weight[tile].abs().max() / 448
            codes[tile] = (weight[tile] / blocks[i, j]).to(torch.float8_e4m3fn)
    return codes, blocks


def test_every_e4m3_code_has_its_value():
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(E4M3_VALUES, codes.view(torch.float8_e4m3fn).to(torch.float32).numpy())


@given(st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=20, deadline=None)
def test_block_scales_at_edges(rows, cols):
    codes, scales = to_fp8(torch.randn(rows, cols))
    spread = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    expected = codes.to(torch.float32) * spread
    np.testing.assert_array_equal(dequantise_e4m3(codes.view(torch.uint8).numpy(), scales.numpy()), expected.numpy())


def make_fp8(folder, only=lambda name: "proj" in name):
    def change(tensors):
        for name in [n for n in tensors if only(n)]:
            tensors[name], tensors[f"{name}_scale_inv"] = to_fp8(tensors[name])

    edit(folder, change)
    edit_config(folder, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})


def test_fp8_with_block_scales(tmp_path):
    folder = save(random_model(Qwen3Config(**{**QWEN3, "hidden_size": 160, "intermediate_size": 272})), tmp_path / "m")
    make_fp8(folder)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.native_format == "e4m3"
    info = checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]
    assert (info.stored, info.shape, info.num_bytes) == ("e4m3", (160, 272), 160 * 272 + 4 * 2 * 3)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.gate_proj.weight"
    scales = tensors[f"{name}_scale_inv"].repeat_interleave(128, 0)[:272].repeat_interleave(128, 1)[:, :160]
    np.testing.assert_array_equal(checkpoint.read(name).to_f32(), (tensors[name].to(torch.float32) * scales).numpy())


def test_mixed_types(folder):
    make_fp8(folder, only=lambda name: "experts" in name)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.native_format == "f32"  # a dense layer of it is
    assert checkpoint.tensors["model.layers.1.mlp.experts.0.up_proj.weight"].stored == "e4m3"
    assert checkpoint.tensors["model.layers.0.mlp.up_proj.weight"].stored == "f32"


def test_fp8_without_scales_is_refused(folder):
    make_fp8(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    edit(folder, lambda t: t.pop(f"{name}_scale_inv"))
    with pytest.raises(BadCheckpoint, match=rf"{name} is FP8 but has no {name}_scale_inv"):
        _ = Checkpoint.open(folder).tensors


def test_scales_of_another_shape_are_refused(folder):
    make_fp8(folder)
    edit(folder, lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1, 5)}))
    with pytest.raises(BadCheckpoint, match=r"is \[1, 5\], not \[1, 1\]"):
        _ = Checkpoint.open(folder).tensors


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "awq"},
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        {"quant_method": "fp8"},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"},
    ],
)
def test_other_quantizations_are_refused(folder, quantization):
    edit_config(folder, quantization_config=quantization)
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        Checkpoint.open(folder)


# --- what can be wrong ---------------------------------------------------------------------------------------


def test_missing_unknown_and_misshapen_tensors_are_listed_together(folder):
    def change(tensors):
        del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        tensors["model.layers.0.mlp.mystery"] = torch.ones(1)
        tensors["model.norm.weight"] = torch.ones(63)

    edit(folder, change)
    with pytest.raises(BadCheckpoint) as e:
        _ = Checkpoint.open(folder).tensors
    assert "1 missing: model.layers.1.mlp.experts.3.up_proj.weight" in str(e.value)
    assert "1 unknown: model.layers.0.mlp.mystery" in str(e.value)
    assert "1 of the wrong shape: model.norm.weight is [63], not [64]" in str(e.value)


def test_computed_tensors_of_exporters_are_ignored(folder):
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(12)}))
    assert Checkpoint.open(folder).tensors


def test_a_tied_head_may_be_stored_twice(tmp_path):
    folder = save(random_model(Qwen3Config(**QWEN3, tie_word_embeddings=True)), tmp_path / "m")
    edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert "lm_head.weight" not in Checkpoint.open(folder).tensors


def test_a_missing_shard_is_named(model, tmp_path):
    folder = save(model, tmp_path / "m", max_shard_size="100KB")
    gone = sorted(folder.glob("*.safetensors"))[2]
    gone.unlink()
    with pytest.raises(BadCheckpoint, match=f"lacks 1 of .*{gone.name}"):
        Checkpoint.open(folder)


def test_an_index_cannot_point_outside_the_folder(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../m/model.safetensors"}}))
    with pytest.raises(BadCheckpoint, match="lacks 1 of 1"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_config_that_is_none_is_named(folder, text):
    (folder / "config.json").unlink() if text is None else (folder / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        Checkpoint.open(folder)


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match="neither"):
        Checkpoint.open(tmp_path / "nothing.bin")


def write_raw(file, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}},
        {"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": 7},
    ],
)
def test_headers_that_lie_are_refused(tmp_path, header):
    with pytest.raises(BadCheckpoint, match=r"x\.safetensors"):
        read_header(write_raw(tmp_path / "x.safetensors", header, bytes(8)))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    good = write_raw(file, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)).read_bytes()
    cut = data.draw(st.integers(0, len(good)))
    place = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255))
    broken = bytearray(good)
    broken[place] = byte
    file.write_bytes(bytes(broken[:cut]))
    try:
        for region in read_header(file).values():
            region.read()
    except BadCheckpoint:
        pass
