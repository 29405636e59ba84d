"""From the config of a published model to a `DecoderConfig`: one function a family.

Keys that a config leaves out take the defaults that `transformers` has for its model_type. A setting that would change
the arithmetic and that the decoder does not have is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .config import DecoderConfig, DenseSpec, GqaSpec, IndexerSpec, LayerSpec, MlaSpec, MoeSpec, RouterSpec
from .errors import UnsupportedConfig
from .rope_config import rope_spec

Config = Mapping[str, Any]


def decoder_config(config: Config, generation_config: Config | None = None, *, with_mtp: bool = False) -> DecoderConfig:
    """`with_mtp` keeps the config's layers for multi-token prediction, of which many checkpoints hold none.

    Raises `UnsupportedConfig` for a family or a setting that the decoder does not have.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise UnsupportedConfig(
            f"model_type {model_type!r} is not supported; supported are {', '.join(sorted(FAMILIES))}"
        )
    full = _with_defaults(config)
    if full.get("hidden_act", "silu") != "silu":
        raise UnsupportedConfig(f"hidden_act {full['hidden_act']!r} is not supported, only 'silu' is")
    layers = family(full)
    num_mtp = int(full.get("num_nextn_predict_layers") or 0) if with_mtp else 0
    return DecoderConfig(
        model_type=str(model_type),
        hidden=full["hidden_size"],
        vocab_size=full["vocab_size"],
        layers=layers,
        rms_norm_eps=float(full["rms_norm_eps"]),
        tie_word_embeddings=bool(full.get("tie_word_embeddings", False)),
        max_positions=full["max_position_embeddings"],
        eos_token_ids=eos_token_ids(config, generation_config or {}),
        mtp_layers=layers[-1:] * num_mtp,
    )


def eos_token_ids(config: Config, generation_config: Config) -> tuple[int, ...]:
    """Every end-of-sequence id of either file, an int or a list in each (0 is an id like any other), ascending."""
    found: set[int] = set()
    for source in (config, generation_config):
        value = source.get("eos_token_id")
        if value is not None:
            found.update(int(v) for v in (value if isinstance(value, list | tuple) else [value]))
    return tuple(sorted(found))


def _with_defaults(config: Config) -> dict[str, Any]:
    """The config with the defaults of `transformers` where it says nothing; RoPE stays as it was written."""
    from transformers import AutoConfig

    rope_keys = ("rope_scaling", "rope_parameters", "rope_theta")
    given = {k: v for k, v in config.items() if k not in (*rope_keys, "model_type", "quantization_config")}
    filled = AutoConfig.for_model(config["model_type"], **given)
    full: dict[str, Any] = filled.to_dict()
    for name, ours in (filled.attribute_map or {}).items():  # the same under its other name
        if ours in full:
            full.setdefault(name, full[ours])
    full.pop("rope_scaling", None)
    full.pop("rope_parameters", None)
    full.update({k: config[k] for k in rope_keys if k in config})
    full.setdefault("rope_theta", getattr(filled, "default_theta", 10000.0))
    return full


def _refuse(config: Config, **unwanted: object) -> None:
    """Refuse a key unless it is absent or has the one value that changes nothing."""
    for key, neutral in unwanted.items():
        if config.get(key, neutral) not in (neutral, None):
            raise UnsupportedConfig(f"{key} = {config[key]!r} is not supported")


def _refuse_windows(config: Config) -> None:
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise UnsupportedConfig("layer_types with 'sliding_attention' is not supported")
    if config.get("use_sliding_window"):
        raise UnsupportedConfig("use_sliding_window is not supported")


def _gqa(config: Config, *, qk_norm: bool, o_bias: bool, default_partial: float = 1.0) -> GqaSpec:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise UnsupportedConfig(f"{heads} attention heads cannot share {kv_heads} key-value heads")
    bias = bool(config.get("attention_bias", False))
    rope = rope_spec(config, head_dim, default_partial)
    return GqaSpec(heads, kv_heads, head_dim, rope, qk_norm=qk_norm, qkv_bias=bias, o_bias=bias and o_bias)


def _llama(config: Config) -> tuple[LayerSpec, ...]:
    _refuse(config, mlp_bias=False, pretraining_tp=1)
    layer = LayerSpec(_gqa(config, qk_norm=False, o_bias=True), DenseSpec(config["intermediate_size"]))
    return (layer,) * int(config["num_hidden_layers"])


def _qwen3(config: Config) -> tuple[LayerSpec, ...]:
    _refuse_windows(config)
    layer = LayerSpec(_gqa(config, qk_norm=True, o_bias=True), DenseSpec(config["intermediate_size"]))
    return (layer,) * int(config["num_hidden_layers"])


def _qwen3_moe(config: Config) -> tuple[LayerSpec, ...]:
    _refuse_windows(config)
    attention = _gqa(config, qk_norm=True, o_bias=True)
    router = RouterSpec(
        config["num_experts"], config["num_experts_per_tok"], normalise=bool(config.get("norm_topk_prob", False))
    )
    sparse = LayerSpec(attention, MoeSpec(config["moe_intermediate_size"], router))
    dense = LayerSpec(attention, DenseSpec(config["intermediate_size"]))
    only_dense = set(config.get("mlp_only_layers") or ())
    step = config.get("decoder_sparse_step") or 1
    return tuple(
        sparse if i not in only_dense and (i + 1) % step == 0 and router.num_experts else dense
        for i in range(config["num_hidden_layers"])
    )


def deepseek_moe(config: Config) -> MoeSpec:
    """The mixture of DeepSeek-V3, which other families took over."""
    _refuse(config, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    router = RouterSpec(
        num_experts=config["n_routed_experts"],
        top_k=config["num_experts_per_tok"],
        scores="sigmoid",
        correction_bias=True,
        num_groups=config.get("n_group") or 1,
        top_k_groups=config.get("topk_group") or 1,
        normalise=bool(config["norm_topk_prob"]),
        normalise_epsilon=1e-20,
        scaling_factor=float(config["routed_scaling_factor"]),
    )
    width = config["moe_intermediate_size"]
    return MoeSpec(width, router, shared_intermediate=width * (config.get("n_shared_experts") or 0))


def _mla(config: Config, indexer: IndexerSpec | None = None) -> MlaSpec:
    return MlaSpec(
        num_heads=config["num_attention_heads"],
        q_lora_rank=config.get("q_lora_rank"),
        kv_lora_rank=config["kv_lora_rank"],
        qk_nope_head_dim=config["qk_nope_head_dim"],
        qk_rope_head_dim=config["qk_rope_head_dim"],
        v_head_dim=config["v_head_dim"],
        rope=rope_spec(config, config["qk_rope_head_dim"]),
        rope_interleaved=bool(config.get("rope_interleave", True)),
        bias=bool(config.get("attention_bias", False)),
        indexer=indexer,
    )


def _deepseek_v3(config: Config, indexer: IndexerSpec | None = None) -> tuple[LayerSpec, ...]:
    _refuse(config, mlp_bias=False, pretraining_tp=1)
    attention = _mla(config, indexer)
    dense = LayerSpec(attention, DenseSpec(config["intermediate_size"]))
    sparse = LayerSpec(attention, deepseek_moe(config))
    num_layers, num_dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    kinds = config.get("mlp_layer_types") or ["dense" if i < num_dense else "sparse" for i in range(num_layers)]
    return tuple(dense if kind == "dense" else sparse for kind in kinds[:num_layers])


def _deepseek_v32(config: Config) -> tuple[LayerSpec, ...]:
    if config["q_lora_rank"] is None:
        raise UnsupportedConfig("q_lora_rank = None is not supported: the indexer's queries come from the latent ones")
    quantised = _is_index_quantised(config)
    indexer = IndexerSpec(config["index_n_heads"], config["index_head_dim"], config["index_topk"], quantised)
    return _deepseek_v3(config, indexer)


def _is_index_quantised(config: Config) -> bool:
    """`index_quantization` is our own key: the published config has none, the published program always does it."""
    value = config.get("index_quantization")
    if value not in (None, "fp8"):
        raise UnsupportedConfig(f"index_quantization = {value!r} is not supported, only 'fp8' and null are")
    head_dim = config["index_head_dim"]
    if value and (head_dim & (head_dim - 1) or head_dim > 128):
        raise UnsupportedConfig(f"index_quantization needs an index_head_dim of 2, 4, ... 128, not {head_dim}")
    return value is not None


def _glm4_moe(config: Config) -> tuple[LayerSpec, ...]:
    attention = _gqa(config, qk_norm=bool(config["use_qk_norm"]), o_bias=False, default_partial=0.5)
    dense = LayerSpec(attention, DenseSpec(config["intermediate_size"]))
    sparse = LayerSpec(attention, deepseek_moe(config))
    num_dense = config["first_k_dense_replace"]
    return tuple(dense if i < num_dense else sparse for i in range(config["num_hidden_layers"]))


FAMILIES: dict[str, Callable[[Config], tuple[LayerSpec, ...]]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "glm4_moe": _glm4_moe,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v32": _deepseek_v32,
}
