"""Reads GGUF files: tensors through a memory map, and the metadata as a config of `transformers`' names.

Parsing the metadata takes seconds where the vocabulary is large, so what we need of it is kept as an index beside the
model (`derived/index.json`), valid while the file's size and time stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BadCheckpoint, UnsupportedModel
from .tensors import F32

INDEX_VERSION = 1
READABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

# Names of a block's tensors: GGUF's to those of transformers (llama.cpp, gguf-py/gguf/tensor_mapping.py).
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

# Keys of `<architecture>.` metadata that make the config.
_CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_MODEL_TYPES = {"llama": "llama", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}


@dataclass(frozen=True, slots=True)
class GgufRegion:
    """Where one tensor lies. `shape` is row-major (GGUF's own order of dimensions reversed)."""

    file: Path
    type: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    def read_f32(self, index: int | None = None) -> F32:
        """The values; of a stack of matrices only the one at `index`."""
        shape = self.shape if index is None else self.shape[1:]
        return self._dequantise(self.read_bytes(index).reshape(-1, self._row_bytes)).reshape(shape)

    def row_reader(self, index: int | None = None) -> Callable[[Sequence[int]], F32]:
        """Reads single rows, by their numbers; the file stays mapped."""
        stored = self.read_bytes(index).reshape(-1, self._row_bytes)
        return lambda rows: self._dequantise(stored[list(rows)])

    def _dequantise(self, rows: npt.NDArray[np.uint8]) -> F32:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        return np.ascontiguousarray(dequantize(rows, GGMLQuantizationType[self.type]), dtype=np.float32)

    def read_bytes(self, index: int | None = None) -> npt.NDArray[np.uint8]:
        """The stored bytes, of the whole tensor or of one matrix of a stack."""
        step = self.num_bytes if index is None else self.num_bytes // self.shape[0]
        offset = self.offset + (step * index if index else 0)
        return np.asarray(np.memmap(self.file, np.uint8, "r", offset, (step,)))

    @property
    def _row_bytes(self) -> int:
        rows = 1
        for n in self.shape[:-1]:
            rows *= n
        return self.num_bytes // rows


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """What we need of a GGUF file's metadata."""

    config: dict[str, Any]
    eos_token_ids: tuple[int, ...]
    regions: dict[str, GgufRegion]
    interleaved_qk: bool  # llama's q and k rows are stored pairwise interleaved


def open_index(file: Path, cache: Path | None) -> GgufIndex:
    """The file's index, from `cache` when that is still right."""
    status = file.stat()
    key = {"version": INDEX_VERSION, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    if cache is not None and cache.is_file():
        try:
            stored = json.loads(cache.read_text(encoding="utf-8"))
            if stored["key"] == key:
                return _from_json(file, stored)
        except (ValueError, KeyError, TypeError):
            pass  # it is only a cache
    data = _parse(file)
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary = cache.with_suffix(".tmp")
        temporary.write_text(json.dumps({"key": key, **data}), encoding="utf-8")
        temporary.replace(cache)
    return _from_json(file, data)


def _from_json(file: Path, data: dict[str, Any]) -> GgufIndex:
    regions = {n: GgufRegion(file, t, tuple(shape), offset, size) for n, t, shape, offset, size in data["tensors"]}
    return GgufIndex(data["config"], tuple(data["eos"]), regions, data["interleaved_qk"])


def _parse(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except (ValueError, OSError, IndexError, KeyError) as e:
        raise BadCheckpoint(f"{file} is not a whole GGUF file: {e}") from e

    def field(name: str) -> Any:
        found = reader.fields.get(name)
        return None if found is None else found.contents()

    architecture = field("general.architecture")
    if architecture not in _MODEL_TYPES:
        raise UnsupportedModel(
            f"{file} holds a model of architecture {architecture!r}; from GGUF we read {', '.join(_MODEL_TYPES)}"
        )
    tensors: list[list[Any]] = []
    for t in reader.tensors:
        if t.tensor_type.name not in READABLE:
            raise UnsupportedModel(f"{file}: {t.name} is {t.tensor_type.name}; readable are {', '.join(READABLE)}")
        shape = [int(n) for n in reversed(t.shape)]
        tensors.append([t.name, t.tensor_type.name, shape, int(t.data_offset), int(t.n_bytes)])
    names = {t[0] for t in tensors}
    config: dict[str, Any] = {"model_type": _MODEL_TYPES[architecture]}
    for key, ours in _CONFIG_KEYS.items():
        value = field(f"{architecture}.{key}")
        if value is not None:
            config[ours] = value
    if "head_dim" not in config and architecture == "llama":
        config["head_dim"] = field("llama.rope.dimension_count")
    config["tie_word_embeddings"] = "output.weight" not in names
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["vocab_size"] = next(t[2][0] for t in tensors if t[0] == "token_embd.weight")
    if architecture == "qwen3moe":
        config["norm_topk_prob"] = True  # llama.cpp does so for every Qwen3-MoE
    if architecture == "llama" and config.get("num_experts"):
        raise UnsupportedModel(f"{file} is a llama with experts (Mixtral), which the decoder does not have")
    scaling = _rope_scaling(field, architecture)
    if scaling:
        config["rope_scaling"] = scaling
    eos = [field(f"tokenizer.ggml.{n}_token_id") for n in ("eos", "eot", "eom")]
    return {
        "config": config,
        "eos": sorted({int(e) for e in eos if e is not None}),
        "tensors": tensors,
        "interleaved_qk": architecture == "llama",
    }


def _rope_scaling(field: Any, architecture: str) -> dict[str, Any] | None:
    kind = field(f"{architecture}.rope.scaling.type")
    if kind in (None, "none"):
        return None
    keys = {
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "attn_factor": "attention_factor",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    scaling = {ours: field(f"{architecture}.rope.scaling.{key}") for key, ours in keys.items()}
    return {"rope_type": kind, **{k: v for k, v in scaling.items() if v is not None}}


def undo_interleave(rows: F32, num_heads: int) -> F32:
    """Rows of llama's q or k as transformers has them: GGUF stores (0, d/2, 1, d/2+1, ...) of each head."""
    half = rows.shape[0] // num_heads // 2
    return np.ascontiguousarray(rows.reshape(num_heads, half, 2, -1).swapaxes(1, 2)).reshape(rows.shape)
