"""The tensors of a checkpoint that stay on the host, as the decoder takes them."""

from __future__ import annotations

import numpy as np
import torch

from duckfleet.runtime.decoder.linear import HostLinear, TorchLinear

from .checkpoint import Checkpoint


class CheckpointWeights:
    """Implements `duckfleet.runtime.decoder.weights.HostWeights`."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self.device = device
        self._embeddings: dict[str, torch.Tensor] = {}

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self._checkpoint.read(name).to_f32())).to(self.device)

    def linear(self, *names: str, bias: bool = False) -> HostLinear:
        tied = self._embeddings.get(f"{names[0]}.weight") if len(names) == 1 else None
        if tied is not None and tied.dtype == torch.float32:
            return TorchLinear(tied)
        weight = torch.cat([self.tensor(f"{n}.weight") for n in names])
        return TorchLinear(weight, torch.cat([self.tensor(f"{n}.bias") for n in names]) if bias else None)

    def embedding(self, name: str) -> torch.Tensor:
        if name not in self._embeddings:
            stored = self._checkpoint.read(name)
            if stored.data.dtype == np.uint16:
                table = torch.from_numpy(np.array(stored.data)).view(torch.bfloat16)
            else:
                table = torch.from_numpy(np.array(stored.to_f32()))
            self._embeddings[name] = table.to(self.device)
        return self._embeddings[name]
