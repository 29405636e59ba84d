"""GGUF files: names, layouts and values as `transformers` has them."""

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from duckfleet.runtime.model import BadCheckpoint, Checkpoint, UnsupportedModel, load_tokenizer
from duckfleet.runtime.model.reference import reference_model
from tests.runtime.model.gguf_writer import write_gguf
from tests.runtime.tiny_models import COMMON, MOE, QWEN3, logits_of, random_model, random_tokens

# llama.cpp's blocks are 32 long, so widths here are multiples of 32
WIDE = {"intermediate_size": 96, "head_dim": 32}
CONFIGS = {
    "llama": LlamaConfig(**{**COMMON, **WIDE}),
    "llama-tied": LlamaConfig(**{**COMMON, **WIDE}, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**{**QWEN3, **WIDE}),
    "qwen3moe": Qwen3MoeConfig(**{**QWEN3, **WIDE, **MOE, "moe_intermediate_size": 64}, norm_topk_prob=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_written_model_is_read_back(name, tmp_path):
    model = random_model(CONFIGS[name])
    file = write_gguf(tmp_path / "m.gguf", model, name.split("-")[0])
    checkpoint = Checkpoint.open(file, tmp_path / "derived")
    assert checkpoint.config.eos_token_ids == (3,)
    tokens = random_tokens(40, 112)
    torch.testing.assert_close(
        logits_of(reference_model(checkpoint), tokens), logits_of(model, tokens), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_block_types_are_dequantised(kind, tmp_path):
    model = random_model(CONFIGS["qwen3moe"])
    kind = gguf.GGMLQuantizationType[kind]
    checkpoint = Checkpoint.open(write_gguf(tmp_path / "m.gguf", model, "qwen3moe", kind))
    experts = model.model.layers[1].mlp.experts.down_proj.detach().numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(experts[5], kind), kind)
    stored = checkpoint.read("model.layers.1.mlp.experts.5.down_proj.weight")
    assert stored.info.stored == kind.name.lower()
    np.testing.assert_array_equal(stored.to_f32(), expected)


def test_the_index_is_kept_and_made_again_when_the_file_changes(tmp_path):
    model = random_model(CONFIGS["llama"])
    file = write_gguf(tmp_path / "m.gguf", model, "llama")
    index = tmp_path / "derived/index.json"
    first = Checkpoint.open(file, tmp_path / "derived").tensors
    written = index.stat().st_mtime_ns
    assert Checkpoint.open(file, tmp_path / "derived").tensors == first
    assert index.stat().st_mtime_ns == written
    index.write_text("{")
    assert Checkpoint.open(file, tmp_path / "derived").tensors == first
    write_gguf(file, random_model(CONFIGS["qwen3"]), "qwen3")
    assert Checkpoint.open(file, tmp_path / "derived").config.model_type == "qwen3"


def test_missing_and_unknown_tensors_are_listed(tmp_path):
    model = random_model(CONFIGS["qwen3"])
    file = write_gguf(tmp_path / "m.gguf", model, "qwen3", add_block_count=4)
    with pytest.raises(BadCheckpoint, match=r"missing: model\.layers\.3\.input_layernorm\.weight"):
        _ = Checkpoint.open(file).tensors
    file = write_gguf(tmp_path / "n.gguf", model, "qwen3", add_block_count=2)
    with pytest.raises(BadCheckpoint, match=r"11 unknown: blk\.2\.attn_k\.weight"):
        _ = Checkpoint.open(file).tensors


def test_other_architectures_are_refused(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", random_model(CONFIGS["qwen3"]), "gemma")
    with pytest.raises(UnsupportedModel, match="architecture 'gemma'"):
        Checkpoint.open(file)


@pytest.mark.parametrize("length", [0, 3, 100, 5000])
def test_a_file_cut_short_is_refused(length, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", random_model(CONFIGS["qwen3"]), "qwen3")
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(BadCheckpoint, match="not a whole GGUF file"):
        Checkpoint.open(file)


def test_smollm2_is_read_as_transformers_reads_it(smollm2):
    processor = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    names = {
        "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
        "blk.29.attn_k.weight": "model.layers.29.self_attn.k_proj.weight",
        "blk.7.attn_v.weight": "model.layers.7.self_attn.v_proj.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.3.ffn_norm.weight": "model.layers.3.post_attention_layernorm.weight",
    }
    stored = {t.name: t for t in gguf.GGUFReader(smollm2.path).tensors}
    for theirs, ours in names.items():
        values = gguf.quants.dequantize(stored[theirs].data, stored[theirs].tensor_type)
        expected = processor.process(values, theirs).weights
        np.testing.assert_array_equal(smollm2.read(ours).to_f32(), expected, err_msg=ours)
    assert len(smollm2.tensors) == len(stored) == 272
    assert smollm2.config.eos_token_ids == (2,) and smollm2.config.tie_word_embeddings


def test_the_tokenizer_comes_from_the_file_and_is_kept(smollm2):
    first, second = load_tokenizer(smollm2), load_tokenizer(smollm2)
    assert (smollm2.derived / "tokenizer/tokenizer.json").is_file()
    text = "Ducks' 2.5 GbE links\n\n  carry é and 鴨."
    assert first.encode(text) == second.encode(text)
    assert second.decode(second.encode(text)) == text
    messages = [{"role": "user", "content": "Hi"}]
    prompt = second.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == first.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
