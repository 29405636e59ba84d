"""The decoder: embedding, layers of attention here and FFN on the fabric, norm, head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from duckfleet.runtime.fabric.interface import Fabric, ForwardTiming

from .attention import GqaAttention, Segment
from .config import DecoderConfig, GqaSpec, LayerSpec, RopeSpec
from .ffn import FabricFfn, TimingSum
from .kv_cache import KvCache
from .linear import PackedLinear
from .mla import MlaAttention
from .native_stack import NativeStack
from .rope import Rope
from .tensor_names import layer_prefix
from .weights import HostWeights

DEFAULT_CHUNK_TOKENS = 512


class Layer:
    """Attention, FFN and the norms before them."""

    def __init__(
        self, config: DecoderConfig, spec: LayerSpec, weights: HostWeights, layer: int, rope: Rope, fabric: Fabric
    ) -> None:
        prefix = layer_prefix(layer)
        self.attention: GqaAttention | MlaAttention
        if isinstance(spec.attention, GqaSpec):
            self.attention = GqaAttention(spec.attention, weights, prefix, layer, rope, config.rms_norm_eps)
        else:
            self.attention = MlaAttention(spec.attention, weights, prefix, layer, rope)
        self.ffn = FabricFfn(spec.ffn, weights, prefix, layer, fabric)
        self.input_norm = weights.tensor(f"{prefix}input_layernorm.weight")
        self.ffn_norm = weights.tensor(f"{prefix}post_attention_layernorm.weight")


class MtpLayer:
    """A layer for multi-token prediction, loaded for whoever drafts with it; `Decoder.forward` does not use it."""

    def __init__(self, layer: Layer, weights: HostWeights, number: int) -> None:
        prefix = layer_prefix(number)
        self.layer = layer
        self.embedding_norm = weights.tensor(f"{prefix}enorm.weight")
        self.hidden_norm = weights.tensor(f"{prefix}hnorm.weight")
        self.projection = weights.linear(f"{prefix}eh_proj")
        self.head_norm = weights.tensor(f"{prefix}shared_head.norm.weight")


class Decoder:
    """Assembled from a config; not safe for use from several threads at once.

    Long inputs are run in chunks of `chunk_tokens`, which does not change the result beyond rounding. `native`: the
    host's arithmetic runs natively where it can (grouped-query attention on a CPU); without it, all of it in torch.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: HostWeights,
        fabric: Fabric,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        *,
        native: bool = True,
    ) -> None:
        self.config = config
        self.fabric = fabric
        self.chunk_tokens = chunk_tokens
        self.timing = ForwardTiming(0.0, 0.0, 0.0, 0.0)  # of the last forward, summed over its layers
        self._device = weights.device
        self._embedding = weights.embedding("model.embed_tokens.weight")
        ropes: dict[RopeSpec, Rope] = {}
        every = [
            Layer(
                config,
                spec,
                weights,
                i,
                ropes.setdefault(spec.attention.rope, Rope(spec.attention.rope, self._device)),
                fabric,
            )
            for i, spec in enumerate(config.all_layers)
        ]
        self._layers = every[: config.num_layers]
        self.mtp = [
            MtpLayer(layer, weights, config.num_layers + i) for i, layer in enumerate(every[config.num_layers :])
        ]
        self._norm = weights.tensor("model.norm.weight")
        self._head = weights.linear("model.embed_tokens" if config.tie_word_embeddings else "lm_head")
        self._native: NativeStack | None = None
        if native and isinstance(self._head, PackedLinear) and NativeStack.can_take(self._layers, self._head):
            self._native = NativeStack(self._layers, self._norm, self._head, config.rms_norm_eps)

    @property
    def is_native(self) -> bool:
        """Whether the host's arithmetic runs natively."""
        return self._native is not None

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.config.eos_token_ids

    def new_cache(self, max_len: int) -> KvCache:
        """A cache for one sequence. Raises `ContextFull` past the model's positions."""
        cache = KvCache(self.config, max_len, self._device, native=self.is_native)
        if self._native is not None:
            self._native.reserve(max_len)
        return cache

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], cache: KvCache, all_logits: bool = False) -> torch.Tensor:
        """Append `tokens` to the sequence of `cache`; logits [len(tokens) or 1, vocab] f32.

        Raises `ContextFull`, and what the fabric raises; the cache then still ends before `tokens`.
        """
        self._check(tokens, cache)
        before, timing = cache.length, TimingSum()
        rows: list[torch.Tensor] = []
        try:
            for first in range(0, len(tokens), self.chunk_tokens):
                chunk = tokens[first : first + self.chunk_tokens]
                is_last = first + len(chunk) == len(tokens)
                wanted = range(len(chunk)) if all_logits else range(len(chunk) - is_last, len(chunk))
                rows.append(self._run(chunk, [Segment(0, len(chunk), cache)], timing, wanted))
        except BaseException:
            cache.length = before
            raise
        self.timing = timing.total()
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    @torch.inference_mode()
    def forward_batch(self, requests: Sequence[tuple[Sequence[int], KvCache]]) -> torch.Tensor:
        """One step of several sequences together: logits of each one's last token, [len(requests), vocab] f32.

        The tokens of all requests make one chunk, so keep their sum within reason.
        """
        segments: list[Segment] = []
        tokens: list[int] = []
        for new, cache in requests:
            self._check(new, cache)
            segments.append(Segment(len(tokens), len(new), cache))
            tokens.extend(new)
        timing = TimingSum()
        logits = self._run(tokens, segments, timing, [s.row0 + s.num_tokens - 1 for s in segments])
        self.timing = timing.total()
        return logits

    def _check(self, tokens: Sequence[int], cache: KvCache) -> None:
        if not tokens:
            raise ValueError("a forward needs at least one token")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise ValueError(f"a token lies outside the vocabulary of {self.vocab_size}")
        cache.room_for(len(tokens))

    def _run(
        self, tokens: Sequence[int], segments: Sequence[Segment], timing: TimingSum, wanted: Sequence[int]
    ) -> torch.Tensor:
        """Logits [len(wanted), vocab] f32 of those rows; the caches have grown."""
        x = self._embedding(tokens)
        if self._native is not None:
            last_ffn = self._native.run(x, segments, timing)
            logits = self._native.logits(last_ffn, wanted)
        else:
            hidden = self._run_in_torch(x, segments, timing)
            logits = self._head(hidden[list(wanted)])
        for s in segments:
            s.cache.length += s.num_tokens
        return logits

    def _run_in_torch(self, x: torch.Tensor, segments: Sequence[Segment], timing: TimingSum) -> torch.Tensor:
        """Hidden states [tokens, hidden] f32 after the last norm, from embeddings."""
        shape, eps = (self.config.hidden,), self.config.rms_norm_eps
        for layer in self._layers:
            x += layer.attention(F.rms_norm(x, shape, layer.input_norm, eps), segments)
            x += layer.ffn(F.rms_norm(x, shape, layer.ffn_norm, eps), timing)
        return F.rms_norm(x, shape, self._norm, eps)
