"""Where a decoder's own weights come from; the checkpoint's side of it is `runtime/model/host_weights.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from .linear import HostLinear, TorchLinear


class Embedding(Protocol):
    """Rows of the embedding table, converted as they are looked up."""

    def __call__(self, tokens: Sequence[int]) -> torch.Tensor:
        """[len(tokens), hidden] f32, on the decoder's device."""
        ...


class HostWeights(Protocol):
    """Tensors by their canonical names (tensor_names.py), read when asked for."""

    device: torch.device

    def tensor(self, name: str) -> torch.Tensor:
        """In f32, on `device`: norms, biases, router."""
        ...

    def linear(self, *names: str, bias: bool = False) -> HostLinear:
        """The matrices `<name>.weight`, rows one under the other, and `<name>.bias` where asked for."""
        ...

    def matrix(self, name: str) -> TorchLinear:
        """The matrix `<name>.weight`, whose values are wanted themselves."""
        ...

    def embedding(self, name: str) -> Embedding: ...
