"""Matrices that stay on the host: projections of the attention, the router, the head."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class HostLinear(Protocol):
    """x [tokens, in] f32 -> [tokens, out] f32, whatever the matrix is stored as."""

    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class TorchLinear:
    """A matrix [out, in] that torch multiplies with, with or without bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features = weight.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)
