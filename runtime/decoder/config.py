"""A decoder described by frozen records: which attention and which FFN each layer has. Free of torch.

`families.py` makes these from the config of a published model; everything else reads only these.
"""

from __future__ import annotations

from dataclasses import dataclass

from duckfleet.runtime.planner import FfnShape, ModelShape


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of `dim` dimensions of each head (Su et al., arXiv:2104.09864), and its scaling.

    `kind`: default, linear, dynamic (NTK), yarn (arXiv:2309.00071), llama3.
    """

    dim: int
    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_positions: int = 0  # of the pretraining; yarn, llama3
    attention_factor: float | None = None  # None: the paper's own
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class GqaSpec:
    """Grouped-query attention (arXiv:2305.13245), with per-head RMS norms of q and k where `qk_norm`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """The lightning indexer of DeepSeek-V3.2: which `top_k` cached tokens a query attends to."""

    num_heads: int
    head_dim: int
    top_k: int
    quantised: bool = False  # Hadamard and FP8 before the products, as the published code does for speed


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), with a sparse indexer in V3.2."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope: RopeSpec
    rope_interleaved: bool = True
    bias: bool = False
    indexer: IndexerSpec | None = None

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """Gated FFN: down(silu(gate x) * up x)."""

    intermediate: int


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """How a token's experts are chosen and weighted.

    `correction_bias` is added to the scores for the choice only; weights come from the scores without it. With
    `num_groups` > 1 only experts of the `top_k_groups` best groups are eligible, a group being as good as the sum of
    its two best (biased) scores (DeepSeek-V3, arXiv:2412.19437).
    """

    num_experts: int
    top_k: int
    scores: str = "softmax"  # or "sigmoid"
    correction_bias: bool = False
    num_groups: int = 1
    top_k_groups: int = 1
    normalise: bool = True  # norm_topk_prob
    normalise_epsilon: float = 0.0
    scaling_factor: float = 1.0  # routed_scaling_factor


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture of experts; `shared_intermediate` > 0 adds an expert that every token goes to."""

    intermediate: int
    router: RouterSpec
    shared_intermediate: int = 0
    shared_name: str = "shared_experts"  # of its tensors
    shared_gate: bool = False  # its output is weighted by sigmoid(gate x)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: norm, attention, norm, FFN, each added to what went in."""

    attention: GqaSpec | MlaSpec
    ffn: DenseSpec | MoeSpec


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything the decoder is assembled from."""

    model_type: str
    hidden: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_positions: int
    eos_token_ids: tuple[int, ...] = ()
    mtp_layers: tuple[LayerSpec, ...] = ()  # for multi-token prediction, numbered on from `layers`

    @property
    def num_layers(self) -> int:
        """Layers of the decoder proper."""
        return len(self.layers)

    @property
    def all_layers(self) -> tuple[LayerSpec, ...]:
        return (*self.layers, *self.mtp_layers)

    def ffn_shape(self, name: str) -> ModelShape:
        """What the planner cuts: the FFN of every layer, MTP layers last."""
        return ModelShape(name, self.hidden, tuple(_ffn_shape(layer.ffn) for layer in self.all_layers))


def _ffn_shape(ffn: DenseSpec | MoeSpec) -> FfnShape:
    if isinstance(ffn, DenseSpec):
        return FfnShape(ffn.intermediate)
    return FfnShape(ffn.intermediate, ffn.router.num_experts, ffn.shared_intermediate)
