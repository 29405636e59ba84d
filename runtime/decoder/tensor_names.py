"""Which tensors a decoder is made of: names as in `transformers`, with their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from .config import DecoderConfig, DenseSpec, GqaSpec, LayerSpec, MlaSpec

FFN_MATRICES = ("gate_proj", "up_proj", "down_proj")


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expert_prefix(config: DecoderConfig, layer: int, expert: int) -> str:
    """Prefix of the three FFN matrices of one expert (0 of a dense layer; num_experts is the shared one)."""
    ffn = config.all_layers[layer].ffn
    if isinstance(ffn, DenseSpec):
        return f"{layer_prefix(layer)}mlp."
    if expert == ffn.router.num_experts:
        return f"{layer_prefix(layer)}mlp.{ffn.shared_name}."
    return f"{layer_prefix(layer)}mlp.experts.{expert}."


def host_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Tensors that stay on the host: all but the FFN matrices."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden)}
    for i, layer in enumerate(config.all_layers):
        tensors.update((layer_prefix(i) + name, shape) for name, shape in _layer_tensors(layer, config.hidden))
    for i in range(config.num_layers, len(config.all_layers)):
        tensors.update((layer_prefix(i) + name, shape) for name, shape in _mtp_tensors(config.hidden))
    tensors["model.norm.weight"] = (config.hidden,)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, config.hidden)
    return tensors


def ffn_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The FFN matrices, which the ducks hold."""
    tensors: dict[str, tuple[int, ...]] = {}
    for i, layer in enumerate(config.ffn_shape("").layers):
        for expert, width in layer.experts:
            prefix = expert_prefix(config, i, expert)
            tensors[prefix + "gate_proj.weight"] = (width, config.hidden)
            tensors[prefix + "up_proj.weight"] = (width, config.hidden)
            tensors[prefix + "down_proj.weight"] = (config.hidden, width)
    return tensors


def _layer_tensors(layer: LayerSpec, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if isinstance(layer.attention, GqaSpec):
        yield from _gqa_tensors(layer.attention, hidden)
    else:
        yield from _mla_tensors(layer.attention, hidden)
    ffn = layer.ffn
    if not isinstance(ffn, DenseSpec):
        yield "mlp.gate.weight", (ffn.router.num_experts, hidden)
        if ffn.router.correction_bias:
            yield "mlp.gate.e_score_correction_bias", (ffn.router.num_experts,)
        if ffn.shared_gate:
            yield "mlp.shared_expert_gate.weight", (1, hidden)


# An MTP layer's own copies of the model's embedding and head, which are not read.
MTP_COPIES = ("embed_tokens.weight", "shared_head.head.weight")


def _mtp_tensors(hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What an MTP layer has besides a decoder layer's (DeepSeek-V3, arXiv:2412.19437, section 2.2)."""
    yield "enorm.weight", (hidden,)
    yield "hnorm.weight", (hidden,)
    yield "eh_proj.weight", (hidden, 2 * hidden)
    yield "shared_head.norm.weight", (hidden,)


def _gqa_tensors(spec: GqaSpec, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    widths = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    for name, heads in widths.items():
        yield f"self_attn.{name}_proj.weight", (heads * spec.head_dim, hidden)
        if spec.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (heads * spec.head_dim,)
    yield "self_attn.o_proj.weight", (hidden, spec.num_heads * spec.head_dim)
    if spec.o_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    if spec.qk_norm:
        yield "self_attn.q_norm.weight", (spec.head_dim,)
        yield "self_attn.k_norm.weight", (spec.head_dim,)


def _mla_tensors(spec: MlaSpec, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    q_width = spec.num_heads * spec.qk_head_dim
    if spec.q_lora_rank is None:
        yield "self_attn.q_proj.weight", (q_width, hidden)
    else:
        yield "self_attn.q_a_proj.weight", (spec.q_lora_rank, hidden)
        yield "self_attn.q_a_layernorm.weight", (spec.q_lora_rank,)
        yield "self_attn.q_b_proj.weight", (q_width, spec.q_lora_rank)
    latent = spec.kv_lora_rank + spec.qk_rope_head_dim
    yield "self_attn.kv_a_proj_with_mqa.weight", (latent, hidden)
    yield "self_attn.kv_a_layernorm.weight", (spec.kv_lora_rank,)
    kv_width = spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim)
    yield "self_attn.kv_b_proj.weight", (kv_width, spec.kv_lora_rank)
    yield "self_attn.o_proj.weight", (hidden, spec.num_heads * spec.v_head_dim)
    if spec.bias:
        if spec.q_lora_rank is not None:
            yield "self_attn.q_a_proj.bias", (spec.q_lora_rank,)
        yield "self_attn.kv_a_proj_with_mqa.bias", (latent,)
        yield "self_attn.o_proj.bias", (hidden,)
    if spec.indexer is not None:
        index_width = spec.indexer.num_heads * spec.indexer.head_dim
        yield "self_attn.indexer.wq_b.weight", (index_width, spec.q_lora_rank or hidden)
        yield "self_attn.indexer.wk.weight", (spec.indexer.head_dim, hidden)
        yield "self_attn.indexer.k_norm.weight", (spec.indexer.head_dim,)
        yield "self_attn.indexer.k_norm.bias", (spec.indexer.head_dim,)
        yield "self_attn.indexer.weights_proj.weight", (spec.indexer.num_heads, hidden)
