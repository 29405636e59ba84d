"""The lightning indexer of DeepSeek-V3.2: which cached tokens a query attends to.

    score(t, s) = sum over heads of w_h(t) * relu(q_h(t) . k(s)) / sqrt(heads * head_dim)

Of equal scores the earlier position wins. With `quantised`, queries and keys go through a Hadamard transform and FP8
as in the published code (https://github.com/deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py); the transform alone
changes no product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .config import MlaSpec
from .rope import rotate
from .weights import HostWeights

_MAX_SCORE_BYTES = 64 << 20
_K_NORM_EPS = 1e-6
_E4M3_MAX = 448.0
_MIN_AMAX = 1e-4


class Indexer:
    """Of one layer. Keys are cached by the attention that it belongs to."""

    def __init__(self, spec: MlaSpec, weights: HostWeights, prefix: str) -> None:
        assert spec.indexer is not None
        self._spec, self._rope_dim = spec.indexer, spec.qk_rope_head_dim
        stem = f"{prefix}self_attn.indexer."
        self._q = weights.linear(f"{stem}wq_b")
        self._k = weights.linear(f"{stem}wk")
        self._k_norm = weights.tensor(f"{stem}k_norm.weight"), weights.tensor(f"{stem}k_norm.bias")
        self._head_weights = weights.tensor(f"{stem}weights_proj.weight")

    def keys(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden] -> what is cached of each, [tokens, head_dim]."""
        k = F.layer_norm(self._k(x), (self._spec.head_dim,), *self._k_norm, eps=_K_NORM_EPS)
        rotate(k[:, None, :], cos, sin)
        return _quantised(k) if self._spec.quantised else k

    def queries(
        self, x: torch.Tensor, q_latent: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, heads, head_dim] and the heads' weights [tokens, heads]."""
        spec = self._spec
        q = self._q(q_latent).view(x.shape[0], spec.num_heads, spec.head_dim)
        rotate(q, cos, sin)
        weights = F.linear(x, self._head_weights) * (spec.num_heads * spec.head_dim) ** -0.5
        return (_quantised(q) if spec.quantised else q), weights

    def select(self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, first: int) -> torch.Tensor:
        """Positions that each query attends to, [tokens, top_k] ascending.

        keys [seen, head_dim]. Query i stands at position first + i, which must be at least top_k - 1.
        """
        spec = self._spec
        block = max(1, _MAX_SCORE_BYTES // (4 * spec.num_heads * keys.shape[0]))
        chosen = [
            self._select_block(q[i : i + block], weights[i : i + block], keys, first + i)
            for i in range(0, q.shape[0], block)
        ]
        return torch.cat(chosen) if len(chosen) > 1 else chosen[0]

    def _select_block(self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, first: int) -> torch.Tensor:
        rows, spec = q.shape[0], self._spec
        if rows == 1:  # keys are most of the work and lie as they are read
            scores = ((keys @ q[0].T).relu_() @ weights[0])[None]
        else:
            products = (q.reshape(-1, spec.head_dim) @ keys.T).relu_()
            scores = torch.bmm(weights[:, None, :], products.view(rows, spec.num_heads, -1))[:, 0]
        if rows > 1:
            positions = torch.arange(keys.shape[0], device=keys.device)
            own = torch.arange(first, first + rows, device=keys.device)[:, None]
            scores.masked_fill_(positions > own, float("-inf"))
        return top_positions(scores, spec.top_k)


def top_positions(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """The `top_k` best columns of each row, ascending; of equal scores the earlier column. [rows, top_k]"""
    threshold = scores.topk(top_k, dim=-1).values[:, -1:]
    chosen = scores >= threshold
    if int(chosen.sum()) != top_k * scores.shape[0]:  # a tie for the last place
        better, equal = scores > threshold, scores == threshold
        room = top_k - better.sum(dim=-1, keepdim=True)
        chosen = better | (equal & (equal.cumsum(dim=-1) <= room))
    return chosen.nonzero()[:, 1].view(scores.shape[0], top_k)


def _quantised(x: torch.Tensor) -> torch.Tensor:
    """Hadamard, then e4m3 with a scale a vector that is a power of two (ue8m0), and back to f32."""
    x = hadamard(x)
    amax = x.abs().amax(dim=-1, keepdim=True).clamp(min=_MIN_AMAX)
    scale = torch.exp2(torch.ceil(torch.log2(amax / _E4M3_MAX)))
    rounded: torch.Tensor = (x / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale
    return rounded


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The orthonormal Walsh-Hadamard transform along the last dimension, which must be a power of two."""
    size = x.shape[-1]
    flat = x.reshape(-1, size)
    step = 1
    while step < size:
        pairs = flat.view(-1, size // (2 * step), 2, step)
        flat = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2).view(-1, size)
        step *= 2
    result: torch.Tensor = (flat * size**-0.5).view(x.shape)
    return result
