"""Tiny models of `transformers` with random weights, saved as checkpoints: the yardstick of our own decoder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": None,
}
QWEN3 = {**COMMON, "head_dim": 24}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
ROUTED = {  # the mixture of DeepSeek-V3
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}

DEEPSEEK = {
    **COMMON,
    **ROUTED,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
}
INDEXER = {"index_topk": 8, "index_n_heads": 16, "index_head_dim": 32}
DEEPSEEK_YARN = {  # as published, for a shorter pretraining
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def random_model(config: Any, seed: int = 0) -> Any:
    """A model whose norms, biases and router corrections are random too, so that none of them goes unnoticed."""
    torch.manual_seed(seed)
    config.initializer_range = 0.15
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                p.normal_(1.0, 0.2)
            elif name.endswith("bias"):
                p.normal_(0.0, 0.2)
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.normal_(0.0, 0.2)
    return model


def save(model: Any, folder: Path, **kwargs: Any) -> Path:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model.save_pretrained(folder, **kwargs)
    return folder


def add_mtp_layer(folder: Path, num_layers: int, hidden: int) -> dict[str, torch.Tensor]:
    """Give a checkpoint of one file a layer for multi-token prediction, as published; returns all its tensors."""
    tensors = load_file(folder / "model.safetensors")
    last, mtp = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    tensors.update({n.replace(last, mtp): t.clone() for n, t in list(tensors.items()) if n.startswith(last)})
    tensors[f"{mtp}enorm.weight"] = torch.ones(hidden)
    tensors[f"{mtp}hnorm.weight"] = torch.full((hidden,), 2.0)
    tensors[f"{mtp}eh_proj.weight"] = torch.randn(hidden, 2 * hidden)
    tensors[f"{mtp}shared_head.norm.weight"] = torch.ones(hidden)
    tensors[f"{mtp}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{mtp}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    return tensors


@torch.inference_mode()
def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab]"""
    return model(torch.tensor([tokens])).logits[0]


def random_tokens(num_tokens: int, vocab_size: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()
