"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), with DeepSeek-V3.2's sparse selection.

What is cached of a token is its latent and one rotated key that all heads share. *Absorbed*, the heads' up-projections
are moved to the query and to the result, and heads attend to the latents themselves; *expanded*, keys and values of
every head are made from the cached latents. Both are the same sum; a long prefill is cheaper expanded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .attention import Segment, mask_future
from .config import MlaSpec
from .indexer import Indexer
from .rope import Rope, rotate, yarn_mscale
from .weights import HostWeights

_MAX_SCORE_BYTES = 64 << 20
_LATENT_NORM_EPS = 1e-6  # of the family's code, whatever rms_norm_eps says


class MlaAttention:
    """Attention of one layer: x [tokens, hidden] -> [tokens, hidden], cache written on the way.

    `KvCache.layers[layer]` is (latents and rotated keys [max_len, kv_lora_rank + qk_rope_head_dim], and with an
    indexer its keys [max_len, head_dim]).
    """

    def __init__(self, spec: MlaSpec, weights: HostWeights, prefix: str, layer: int, rope: Rope) -> None:
        self._spec, self._layer, self._rope = spec, layer, rope
        stem = f"{prefix}self_attn."
        if spec.q_lora_rank is None:
            self._q_a, self._q_norm = None, None
            self._q = weights.linear(f"{stem}q_proj")
        else:
            self._q_a = weights.linear(f"{stem}q_a_proj", bias=spec.bias)
            self._q_norm = weights.tensor(f"{stem}q_a_layernorm.weight")
            self._q = weights.linear(f"{stem}q_b_proj")
        self._kv_a = weights.linear(f"{stem}kv_a_proj_with_mqa", bias=spec.bias)
        self._kv_norm = weights.tensor(f"{stem}kv_a_layernorm.weight")
        self._kv_b = weights.matrix(f"{stem}kv_b_proj")
        self._out = weights.linear(f"{stem}o_proj", bias=spec.bias)
        self._indexer = Indexer(spec, weights, prefix) if spec.indexer else None
        self._scale = spec.qk_head_dim**-0.5
        if spec.rope.kind != "default" and spec.rope.mscale_all_dim:
            self._scale *= yarn_mscale(spec.rope.factor, spec.rope.mscale_all_dim) ** 2

    def __call__(self, x: torch.Tensor, segments: Sequence[Segment]) -> torch.Tensor:
        spec = self._spec
        q_latent = x
        if self._q_a is not None and self._q_norm is not None:
            q_latent = F.rms_norm(self._q_a(x), (self._q_norm.shape[0],), self._q_norm, _LATENT_NORM_EPS)
        q = self._q(q_latent).view(x.shape[0], spec.num_heads, spec.qk_head_dim)
        kv = self._kv_a(x)
        rank = spec.kv_lora_rank
        kv[:, :rank] = F.rms_norm(kv[:, :rank], (rank,), self._kv_norm, _LATENT_NORM_EPS)
        mixed = torch.empty(x.shape[0], spec.num_heads, spec.v_head_dim, device=x.device)
        for s in segments:
            rows = slice(s.row0, s.row0 + s.num_tokens)
            start, stop = s.start, s.start + s.num_tokens
            cos, sin = self._rope.at(start, stop)
            rotate(q[rows, :, spec.qk_nope_head_dim :], cos, sin, interleaved=spec.rope_interleaved)
            rotate(kv[rows, None, rank:], cos, sin, interleaved=spec.rope_interleaved)
            cached = s.cache.layers[self._layer]
            cached[0][start:stop] = kv[rows]
            num_dense = s.num_tokens
            if self._indexer is not None and spec.indexer is not None:
                cached[1][start:stop] = self._indexer.keys(x[rows], cos, sin)
                num_dense = min(s.num_tokens, max(0, spec.indexer.top_k - start))
            if num_dense:
                mixed[s.row0 : s.row0 + num_dense] = self._dense(q[rows][:num_dense], cached[0], start)
            if num_dense < s.num_tokens and self._indexer is not None:
                late = slice(s.row0 + num_dense, s.row0 + s.num_tokens)
                index_q = self._indexer.queries(x[late], q_latent[late], cos[num_dense:], sin[num_dense:])
                chosen = self._indexer.select(*index_q, cached[1][:stop], start + num_dense)
                mixed[late] = self._sparse(q[late], cached[0], chosen)
        return self._out(mixed.view(x.shape[0], -1))

    def _up_projections(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of keys [heads, nope, rank] and of values [heads, v, rank]."""
        spec = self._spec
        both = self._kv_b.dequantised().view(spec.num_heads, spec.qk_nope_head_dim + spec.v_head_dim, -1)
        return both[:, : spec.qk_nope_head_dim], both[:, spec.qk_nope_head_dim :]

    def _absorb(self, q: torch.Tensor, key_up: torch.Tensor) -> torch.Tensor:
        """Queries against latents, [heads, tokens, rank + rope]."""
        nope, rotated = torch.split(
            q.transpose(0, 1), [self._spec.qk_nope_head_dim, self._spec.qk_rope_head_dim], dim=2
        )
        return torch.cat((torch.bmm(nope, key_up), rotated), dim=2)

    def _dense(self, q: torch.Tensor, cached: torch.Tensor, start: int) -> torch.Tensor:
        """Queries at start, start + 1, ... attend to everything up to themselves. [tokens, heads, v]"""
        spec, num_tokens = self._spec, q.shape[0]
        per_latent = spec.kv_lora_rank * (spec.qk_nope_head_dim + spec.v_head_dim)
        seen = start + num_tokens
        expanded_cost = seen * per_latent + num_tokens * seen * (spec.qk_head_dim + spec.v_head_dim)
        absorbed_cost = num_tokens * per_latent + num_tokens * seen * (2 * spec.kv_lora_rank + spec.qk_rope_head_dim)
        attend = self._expanded if expanded_cost < absorbed_cost else self._absorbed
        return attend(q, cached[:seen], start)

    def _absorbed(self, q: torch.Tensor, cached: torch.Tensor, start: int) -> torch.Tensor:
        spec = self._spec
        key_up, value_up = self._up_projections()
        queries, latents = self._absorb(q, key_up), cached[:, : spec.kv_lora_rank]
        out = torch.empty(spec.num_heads, q.shape[0], spec.v_head_dim, device=q.device)
        for rows, seen in self._blocks(q.shape[0], start):
            scores = (queries[:, rows] @ cached[:seen].T).mul_(self._scale)
            mask_future(scores, scores.shape[1])
            out[:, rows] = torch.bmm(scores.softmax(dim=-1) @ latents[:seen], value_up.transpose(1, 2))
        return out.transpose(0, 1)

    def _expanded(self, q: torch.Tensor, cached: torch.Tensor, start: int) -> torch.Tensor:
        spec = self._spec
        key_up, value_up = self._up_projections()
        latents, rotated = torch.split(cached, [spec.kv_lora_rank, spec.qk_rope_head_dim], dim=1)
        keys = torch.cat((latents @ key_up.transpose(1, 2), rotated.expand(spec.num_heads, -1, -1)), dim=2)
        values = latents @ value_up.transpose(1, 2)  # [heads, seen, v]
        out = torch.empty(spec.num_heads, q.shape[0], spec.v_head_dim, device=q.device)
        queries = q.transpose(0, 1)
        for rows, seen in self._blocks(q.shape[0], start):
            scores = torch.bmm(queries[:, rows], keys[:, :seen].transpose(1, 2)).mul_(self._scale)
            mask_future(scores, scores.shape[1])
            out[:, rows] = torch.bmm(scores.softmax(dim=-1), values[:, :seen])
        return out.transpose(0, 1)

    def _blocks(self, num_tokens: int, start: int) -> Sequence[tuple[slice, int]]:
        """(rows, positions they see) so that the scores of a block stay within bounds."""
        block = max(1, _MAX_SCORE_BYTES // (4 * self._spec.num_heads * (start + num_tokens)))
        ends = [min(first + block, num_tokens) for first in range(0, num_tokens, block)]
        return [(slice(end - 1 - (end - 1) % block, end), start + end) for end in ends]

    def _sparse(self, q: torch.Tensor, cached: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Each query attends to its own chosen positions [tokens, top_k], absorbed. [tokens, heads, v]"""
        spec = self._spec
        key_up, value_up = self._up_projections()
        queries = self._absorb(q, key_up).transpose(0, 1)  # [tokens, heads, rank + rope]
        mixed = torch.empty(q.shape[0], spec.num_heads, spec.kv_lora_rank, device=q.device)
        block = max(1, _MAX_SCORE_BYTES // (4 * chosen.shape[1] * cached.shape[1]))
        for first in range(0, q.shape[0], block):
            rows = slice(first, first + block)
            keys = cached[chosen[rows]]  # [rows, top_k, rank + rope]
            scores = torch.bmm(queries[rows], keys.transpose(1, 2)).mul_(self._scale)
            mixed[rows] = torch.bmm(scores.softmax(dim=-1), keys[:, :, : spec.kv_lora_rank])
        return torch.bmm(mixed.transpose(0, 1), value_up.transpose(1, 2)).transpose(0, 1)
