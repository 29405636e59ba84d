"""The tensors of a published model that is not here: counted from the catalogue, so that a fleet can be planned."""

from __future__ import annotations

import math
from typing import Any

from duckfleet.runtime.decoder.config import DecoderConfig
from duckfleet.runtime.decoder.families import FAMILIES, decoder_config
from duckfleet.runtime.decoder.tensor_names import MTP_COPIES, ffn_tensors, host_tensors, layer_prefix

from .catalogue import CatalogueEntry
from .convert import is_rounded
from .errors import UnsupportedModel
from .tensors import SCALE_BLOCK, TensorInfo

# Names of the catalogue's counts in the configs of transformers; what an entry leaves out has that library's default.
_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "vocab": "vocab_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "dense_layers": "first_k_dense_replace",
    "dense_intermediate": "intermediate_size",
    "experts_per_token": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "moe_intermediate": "moe_intermediate_size",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "v_head_dim": "v_head_dim",
    "index_heads": "index_n_heads",
    "index_head_dim": "index_head_dim",
    "index_topk": "index_topk",
    "mtp_layers": "num_nextn_predict_layers",
}


def published_config(entry: CatalogueEntry) -> DecoderConfig:
    """Raises `UnsupportedModel` for a family that the decoder does not have yet."""
    if entry.model_type not in FAMILIES:
        raise UnsupportedModel(
            f"{entry.name} is of the family {entry.model_type}, which the decoder does not have; "
            f"it has {', '.join(sorted(FAMILIES))}"
        )
    raw: dict[str, Any] = {"model_type": entry.model_type, "tie_word_embeddings": entry.tied_embeddings}
    for ours, theirs in _KEYS.items():
        value = getattr(entry, ours)
        if value:
            raw[theirs] = value
    if entry.experts:
        raw["n_routed_experts" if "deepseek" in entry.model_type else "num_experts"] = entry.experts
    return decoder_config(raw, with_mtp=True)


def published_tensors(entry: CatalogueEntry) -> dict[str, TensorInfo]:
    """Every tensor of the published checkpoint: FP8 with block scales where that is its format, else bf16."""
    config = published_config(entry)
    shapes = {**host_tensors(config), **ffn_tensors(config)}
    for i in range(config.num_layers, len(config.all_layers)):
        shapes.update({layer_prefix(i) + copy: (config.vocab_size, config.hidden) for copy in MTP_COPIES})
    return {name: _info(name, shape, entry.format) for name, shape in shapes.items()}


def _info(name: str, shape: tuple[int, ...], format: str) -> TensorInfo:
    count = math.prod(shape)
    if format == "e4m3" and is_rounded(name):
        return TensorInfo(name, shape, "e4m3", count + 4 * math.prod(-(-n // SCALE_BLOCK) for n in shape))
    if name.endswith("e_score_correction_bias"):
        return TensorInfo(name, shape, "f32", 4 * count)
    return TensorInfo(name, shape, "bf16", 2 * count)
