"""Where a decoder's own weights come from; the checkpoint's side of it is `runtime/model/host_weights.py`."""

from __future__ import annotations

from typing import Protocol

import torch

from .linear import HostLinear


class HostWeights(Protocol):
    """Tensors by their canonical names (tensor_names.py), read when asked for."""

    device: torch.device

    def tensor(self, name: str) -> torch.Tensor:
        """In f32, on `device`: norms, biases, router."""
        ...

    def linear(self, *names: str, bias: bool = False) -> HostLinear:
        """The matrices `<name>.weight`, rows one under the other, and `<name>.bias` where asked for."""
        ...

    def embedding(self, name: str) -> torch.Tensor:
        """[vocab, hidden], on `device`, in the stored type; rows are converted as they are looked up."""
        ...
