"""Rotary position embedding: frequencies of each kind of scaling, tables, and the rotation itself."""

from __future__ import annotations

import math

import torch

from .config import RopeSpec

_FIRST_TABLE_LEN = 1024


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """[dim / 2] f32: angle a position.

    `dynamic` equals `default` here, as no sequence grows past the config's positions. Sources: RopeSpec.
    """
    exponent = torch.arange(0, spec.dim, 2, dtype=torch.int64).to(torch.float32) / spec.dim
    plain = 1.0 / (spec.theta**exponent)
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "yarn":
        return _yarn(spec, plain, exponent)
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    return plain


def attention_scale(spec: RopeSpec) -> float:
    """What cos and sin are multiplied by."""
    if spec.kind != "yarn":
        return 1.0
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return yarn_mscale(spec.factor, spec.mscale) / yarn_mscale(spec.factor, spec.mscale_all_dim)
    return yarn_mscale(spec.factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    """Eq. 22 of YaRN (arXiv:2309.00071) with DeepSeek's weight `mscale`."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn(spec: RopeSpec, plain: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    def dimension_of(rotations: float) -> float:
        """The dimension that makes so many turns over the pretraining length."""
        return spec.dim * math.log(spec.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    interpolated = 1.0 / (spec.factor * spec.theta**exponent)
    return interpolated * ramp + plain * (1 - ramp)


def _llama3(spec: RopeSpec, plain: torch.Tensor) -> torch.Tensor:
    wavelength = 2 * math.pi / plain
    longest = spec.original_max_positions / spec.low_freq_factor
    shortest = spec.original_max_positions / spec.high_freq_factor
    smooth = (spec.original_max_positions / wavelength - spec.low_freq_factor) / (
        spec.high_freq_factor - spec.low_freq_factor
    )
    between = (1 - smooth) * plain / spec.factor + smooth * plain
    scaled = torch.where(wavelength > longest, plain / spec.factor, plain)
    return torch.where((wavelength >= shortest) & (wavelength <= longest), between, scaled)


class Rope:
    """Tables of cos and sin, grown by doubling, so that a step only takes slices of them."""

    def __init__(self, spec: RopeSpec, device: torch.device) -> None:
        self.spec = spec
        self._device = device
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None

    def reserve(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole tables, of at least so many positions."""
        table = self._table
        if table is None or table[0].shape[0] < length:
            table = self._table = self._make(length)
        return table

    def at(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of positions [start, stop): each [stop - start, dim / 2] f32."""
        table = self._table
        if table is None or table[0].shape[0] < stop:
            table = self._table = self._make(max(_FIRST_TABLE_LEN, 2 * stop))
        return table[0][start:stop], table[1][start:stop]

    def _make(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequencies(self.spec)
        scale = attention_scale(self.spec)
        return (angles.cos() * scale).to(self._device), (angles.sin() * scale).to(self._device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> None:
    """Rotate the first 2 * cos.shape[-1] dimensions of x [tokens, heads, head_dim] in place.

    Pairs are (i, i + dim/2), or (2i, 2i + 1) where `interleaved`.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    rotated = first * cos - second * sin
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(rotated)
