"""Grouped-query attention over a static cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .config import GqaSpec
from .kv_cache import KvCache
from .rope import Rope, rotate
from .weights import HostWeights

# Scores of a long prefill are made a block of rows at a time, so that they stay within this.
_MAX_SCORE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows [row0, row0 + num_tokens) of a batch are the next tokens of one sequence."""

    row0: int
    num_tokens: int
    cache: KvCache

    @property
    def start(self) -> int:
        """Position of the first of its tokens."""
        return self.cache.length


class GqaAttention:
    """Attention of one layer: x [tokens, hidden] -> [tokens, hidden], cache written on the way."""

    def __init__(self, spec: GqaSpec, weights: HostWeights, prefix: str, layer: int, rope: Rope, eps: float) -> None:
        self.spec, self.rope = spec, rope
        self._layer, self._eps = layer, eps
        names = [f"{prefix}self_attn.{n}_proj" for n in "qkv"]
        self.qkv = weights.linear(*names, bias=spec.qkv_bias)
        self.out = weights.linear(f"{prefix}self_attn.o_proj", bias=spec.o_bias)
        self.q_norm = weights.tensor(f"{prefix}self_attn.q_norm.weight") if spec.qk_norm else None
        self.k_norm = weights.tensor(f"{prefix}self_attn.k_norm.weight") if spec.qk_norm else None

    def __call__(self, x: torch.Tensor, segments: Sequence[Segment]) -> torch.Tensor:
        spec = self.spec
        qkv = self.qkv(x).view(x.shape[0], spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        q, k, v = torch.split(qkv, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q = F.rms_norm(q, (spec.head_dim,), self.q_norm, self._eps)
            k = F.rms_norm(k, (spec.head_dim,), self.k_norm, self._eps)
        mixed = torch.empty(x.shape[0], spec.num_heads, spec.head_dim, device=x.device)
        for s in segments:
            rows = slice(s.row0, s.row0 + s.num_tokens)
            cos, sin = self.rope.at(s.start, s.start + s.num_tokens)
            rotate(q[rows], cos, sin)
            rotate(k[rows], cos, sin)
            self._attend(q[rows], k[rows], v[rows], s, mixed[rows])
        return self.out(mixed.view(x.shape[0], -1))

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segment: Segment, out: torch.Tensor) -> None:
        """q [tokens, heads, d], k and v [tokens, kv_heads, d] of one sequence; `out` as q."""
        spec, start, stop = self.spec, segment.start, segment.start + segment.num_tokens
        keys, values = segment.cache.layers[self._layer]  # a pair, for this kind of attention
        keys[:, start:stop].copy_(k.transpose(0, 1))
        values[:, start:stop].copy_(v.transpose(0, 1))
        group = spec.num_heads // spec.num_kv_heads
        block = max(1, _MAX_SCORE_BYTES // (4 * spec.num_heads * stop))
        for first in range(0, segment.num_tokens, block):
            last = min(first + block, segment.num_tokens)
            rows, seen = last - first, start + last
            grouped = q[first:last].view(rows, spec.num_kv_heads, group, spec.head_dim)
            # [kv_heads, group * rows, seen]: the heads that share keys are rows of one product
            queries = grouped.permute(1, 2, 0, 3).reshape(spec.num_kv_heads, group * rows, spec.head_dim)
            scores = torch.bmm(queries, keys[:, :seen].transpose(1, 2)).mul_(spec.head_dim**-0.5)
            mask_future(scores.view(-1, rows, seen), rows)
            mixed = torch.bmm(torch.softmax(scores, dim=-1), values[:, :seen])
            result = mixed.view(spec.num_kv_heads, group, rows, spec.head_dim).permute(2, 0, 1, 3)
            out[first:last].view(rows, spec.num_kv_heads, group, spec.head_dim).copy_(result)


def mask_future(scores: torch.Tensor, rows: int) -> None:
    """scores [..., rows, seen], the last `rows` positions being the queries' own: none sees a later one."""
    if rows > 1:
        future = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., -rows:].masked_fill_(future, float("-inf"))
