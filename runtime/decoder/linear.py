"""Matrices that stay on the host: projections of the attention and the head, in the format they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from duckfleet.fp9_kernels import PackedMatrix


class HostLinear(Protocol):
    """x [tokens, in] f32 -> [tokens, out] f32, whatever the matrix is stored as."""

    @property
    def out_features(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Memory that the matrix takes."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class PackedLinear:
    """Matrices one under the other, on the CPU, through the ducks' own kernels.

    So a row's result does not depend on how many tokens are in the batch.
    """

    def __init__(self, matrices: Sequence[PackedMatrix], bias: torch.Tensor | None = None, threads: int = 1) -> None:
        self.matrices = tuple(matrices)
        self.bias = bias
        self.threads = threads
        self.out_features = sum(m.shape[0] for m in matrices)

    @property
    def num_bytes(self) -> int:
        return sum(m.num_bytes for m in self.matrices)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.contiguous().numpy()
        if len(self.matrices) == 1:
            out = torch.empty(x.shape[0], self.out_features)
            self.matrices[0].gemv(rows, threads=self.threads, out=out.numpy())
        else:
            out = torch.cat([torch.from_numpy(m.gemv(rows, threads=self.threads)) for m in self.matrices], dim=1)
        return out if self.bias is None else out.add_(self.bias)


class TorchLinear:
    """A matrix [out, in] on any device, in f32, bf16, or FP8 with a scale a block of 128x128; torch multiplies.

    What is stored small stays small: it is widened at each call.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, scale_inv: torch.Tensor | None = None
    ) -> None:
        self._weight, self._bias, self._scale_inv = weight, bias, scale_inv
        self.out_features = weight.shape[0]

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self._weight, self._scale_inv) if t is not None)

    def dequantised(self) -> torch.Tensor:
        """[out, in] f32; not a copy where it is stored so."""
        weight = self._weight.to(torch.float32)
        if self._scale_inv is not None:
            rows, cols = weight.shape
            weight *= self._scale_inv.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        return weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.dequantised(), self._bias)
