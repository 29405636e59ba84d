"""The static cache of one sequence: allocated once, filled from the front."""

from __future__ import annotations

import torch

from . import _host
from .config import DecoderConfig, GqaSpec, MlaSpec
from .errors import ContextFull


def cache_bytes_per_token(config: DecoderConfig, element_bytes: int = 4) -> int:
    """Bytes of cache that one token takes over all layers."""
    return element_bytes * sum(_widths(layer.attention) for layer in config.all_layers)


def _widths(spec: GqaSpec | MlaSpec) -> int:
    if isinstance(spec, GqaSpec):
        return 2 * spec.num_kv_heads * spec.head_dim
    index = spec.indexer.head_dim if spec.indexer else 0
    return spec.kv_lora_rank + spec.qk_rope_head_dim + index


class KvCache:
    """Keys and values of every layer for at most `max_len` tokens; `length` of them are there.

    `layers[i]` is (k, v), each [kv_heads, max_len, head_dim] f32, for grouped-query attention; mla.py says what it is
    for latent attention. With `native` the decoder's own layers have keys in panels and padded values instead, as
    native/stack.hpp says, and `handle` is what the native stack takes.
    """

    def __init__(self, config: DecoderConfig, max_len: int, device: torch.device, native: bool = False) -> None:
        if max_len < 1 or max_len > config.max_positions:
            raise ContextFull(
                f"a context of {max_len} tokens is not possible: the model has {config.max_positions} positions"
            )
        self.max_len = max_len
        self.length = 0
        self.layers = [
            _panels(layer.attention, max_len)
            if native and i < config.num_layers and isinstance(layer.attention, GqaSpec)
            else _allocate(layer.attention, max_len, device)
            for i, layer in enumerate(config.all_layers)
        ]
        self.handle: _host.Cache | None = None
        if native:
            arrays = [(keys.numpy(), values.numpy()) for keys, values in self.layers[: config.num_layers]]
            self.handle = _host.Cache(max_len, arrays)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length

    def room_for(self, num_tokens: int) -> None:
        """Raises `ContextFull` where `num_tokens` more do not fit."""
        if self.length + num_tokens > self.max_len:
            raise ContextFull(
                f"{num_tokens} more tokens do not fit: {self.length} of the context's {self.max_len} are taken"
            )


def _panels(spec: GqaSpec, max_len: int) -> tuple[torch.Tensor, ...]:
    lanes = _host.LANES
    keys = torch.zeros(spec.num_kv_heads, -(-max_len // lanes), spec.head_dim, lanes)
    return keys, torch.zeros(spec.num_kv_heads, max_len, -(-spec.head_dim // lanes) * lanes)


def _allocate(spec: GqaSpec | MlaSpec, max_len: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    if isinstance(spec, GqaSpec):
        shape = (spec.num_kv_heads, max_len, spec.head_dim)
        return torch.zeros(shape, device=device), torch.zeros(shape, device=device)
    latents = torch.zeros(max_len, spec.kv_lora_rank + spec.qk_rope_head_dim, device=device)
    if spec.indexer is None:
        return (latents,)
    return latents, torch.zeros(max_len, spec.indexer.head_dim, device=device)
