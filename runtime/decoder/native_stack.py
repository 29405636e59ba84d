"""The host's layers natively: on a CPU, for grouped-query attention, what is not the ducks' in one call a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

# The type of its packed matrices must be known to nanobind before _host takes one.
from duckfleet.fp9_kernels import PackedMatrix  # noqa: F401
from duckfleet.runtime.fabric.interface import F32

from . import _host
from .attention import GqaAttention, Segment
from .ffn import FabricFfn, TimingSum
from .linear import HostLinear, PackedLinear
from .rope import Rope

if TYPE_CHECKING:
    from .decoder import Layer


class NativeStack:
    """Runs batches through all layers; the FFNs go to the fabric as they do without it.

    Results do not depend on the batch, nor on how a sequence was cut into forwards.
    """

    def __init__(self, layers: Sequence[Layer], norm: torch.Tensor, head: PackedLinear, eps: float) -> None:
        hidden = norm.shape[0]
        self._stack = _host.Stack(hidden, eps, head.threads)
        self._ffns: list[FabricFfn] = [layer.ffn for layer in layers]
        self._ropes: list[Rope] = []
        self._positions = 0
        for layer in layers:
            self._add(layer)
        self._stack.set_head(norm.numpy(), head.matrices[0].native)
        self._vocab_size = head.out_features
        self._buffers = np.empty((2, 0, hidden), np.float32)

    @staticmethod
    def can_take(layers: Sequence[Layer], head: HostLinear) -> bool:
        """Whether everything is of the kinds that the native code has."""
        linears: list[HostLinear] = [head]
        for layer in layers:
            if not isinstance(layer.attention, GqaAttention):
                return False
            linears += [layer.attention.qkv, layer.attention.out]
        return all(isinstance(linear, PackedLinear) for linear in linears)

    def _add(self, layer: Layer) -> None:
        attention = layer.attention
        assert isinstance(attention, GqaAttention)
        qkv, out = attention.qkv, attention.out
        assert isinstance(qkv, PackedLinear) and isinstance(out, PackedLinear)
        if attention.rope not in self._ropes:
            self._ropes.append(attention.rope)
        spec = attention.spec
        self._stack.add_layer(
            input_norm=layer.input_norm.numpy(),
            ffn_norm=layer.ffn_norm.numpy(),
            qkv=[matrix.native for matrix in qkv.matrices],
            qkv_bias=_array(qkv.bias),
            out=out.matrices[0].native,
            out_bias=_array(out.bias),
            q_norm=_array(attention.q_norm),
            k_norm=_array(attention.k_norm),
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            rope=self._ropes.index(attention.rope),
            rope_dim=spec.rope.dim,
        )

    def reserve(self, num_positions: int) -> None:
        """Before a cache of so many tokens is used."""
        if num_positions > self._positions:
            for i, rope in enumerate(self._ropes):
                cos, sin = rope.reserve(num_positions)
                self._stack.set_rope(i, cos.numpy(), sin.numpy())
            self._positions = num_positions

    def run(self, x: torch.Tensor, segments: Sequence[Segment], timing: TimingSum) -> F32:
        """x [tokens, hidden] f32: embeddings. Returns what `logits` takes, valid until the next run."""
        num_tokens = x.shape[0]
        if self._buffers.shape[1] < num_tokens:
            self._buffers = np.empty((2, num_tokens, x.shape[1]), np.float32)
        ffn_in, ffn_out = self._buffers[0, :num_tokens], self._buffers[1, :num_tokens]
        sequences = []
        for s in segments:
            if s.cache.handle is None:
                raise ValueError("the cache is not one of this decoder's")
            sequences.append((s.cache.handle, s.start, s.num_tokens))
        stack = self._stack
        last: F32 | None = None
        stack.begin(x.numpy(), sequences)
        for i, ffn in enumerate(self._ffns):
            stack.attention(i, last, ffn_in)
            ffn.into(ffn_in, ffn_out, timing)
            last = ffn_out
        return ffn_out

    def logits(self, last_ffn: F32, rows: Sequence[int]) -> torch.Tensor:
        """[len(rows), vocab] f32 of some rows of the last run."""
        out = torch.empty(len(rows), self._vocab_size)
        self._stack.logits(last_ffn, list(rows), out.numpy())
        return out


def _array(tensor: torch.Tensor | None) -> F32 | None:
    return None if tensor is None else tensor.numpy()
