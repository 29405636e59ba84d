"""Writes a model of `transformers` as GGUF the way llama.cpp's converter does, for tests of the reader."""

from __future__ import annotations

import gguf
import numpy as np

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def interleave(rows, heads):
    """llama.cpp keeps q and k rows of a llama as pairs (i, i + d/2)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(file, model, architecture, matrix_type=gguf.GGMLQuantizationType.F32, **changes):
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(config.eos_token_id)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for key, value in changes.items():
        getattr(writer, key)(value)
    for name, p in model.named_parameters():
        data = p.detach().numpy()
        for gguf_name, tensor in _tensors(name, data, config, architecture):
            kind = matrix_type if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(gguf_name, gguf.quants.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tensors(name, data, config, architecture):
    if "layers" not in name:
        stem, suffix = name.rsplit(".", 1)
        yield f"{TOP[stem]}.{suffix}", data
        return
    _, _, layer, rest = name.split(".", 3)
    if rest == "mlp.experts.gate_up_proj":
        width = data.shape[1] // 2
        yield f"blk.{layer}.ffn_gate_exps.weight", data[:, :width]
        yield f"blk.{layer}.ffn_up_exps.weight", data[:, width:]
    elif rest == "mlp.experts.down_proj":
        yield f"blk.{layer}.ffn_down_exps.weight", data
    else:
        stem, suffix = rest.rsplit(".", 1)
        if architecture == "llama" and stem.endswith("q_proj"):
            data = interleave(data, config.num_attention_heads)
        if architecture == "llama" and stem.endswith("k_proj"):
            data = interleave(data, config.num_key_value_heads)
        yield f"blk.{layer}.{NAMES[stem]}.{suffix}", data
