"""A fabric for decoder tests that multiplies with whole matrices in torch: shares nothing with kernels and chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from duckfleet.runtime.decoder.tensor_names import expert_prefix
from duckfleet.runtime.fabric.interface import ForwardTiming


class MatrixFabric:
    """FFN weights straight from a checkpoint, dequantised."""

    def __init__(self, checkpoint):
        self._checkpoint = checkpoint
        self._matrices = {}
        self.requests = []  # (layer, num_tokens, lane)

    def _matrix(self, name):
        if name not in self._matrices:
            self._matrices[name] = torch.tensor(self._checkpoint.read(name).to_f32())
        return self._matrices[name]

    def _expert(self, layer, expert, x):
        prefix = expert_prefix(self._checkpoint.config, layer, expert)
        gate, up, down = (self._matrix(f"{prefix}{n}_proj.weight") for n in ("gate", "up", "down"))
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def submit(self, layer, x, experts=None, weights=None, lane=0):
        assert x.flags.c_contiguous and x.shape[0] <= 128
        self.requests.append((layer, x.shape[0], lane))
        x = torch.from_numpy(x)
        if experts is None:
            return self._expert(layer, 0, x)
        out = torch.zeros_like(x)
        for row, (ids, strengths) in enumerate(zip(experts, weights, strict=True)):
            assert list(ids) == sorted(set(ids))
            for expert, strength in zip(ids, strengths, strict=True):
                out[row] += float(strength) * self._expert(layer, int(expert), x[row : row + 1])[0]
        return out

    def wait(self, ticket, out):
        out[:] = ticket.numpy()
        return ForwardTiming(1.0, 2.0, 3.0, 4.0)

    def stats(self):
        return {}

    def close(self):
        pass
