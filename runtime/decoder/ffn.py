"""FFN layers as the decoder sees them: computed by a fabric, experts chosen here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from duckfleet.runtime.fabric.interface import F32, U32, Fabric, ForwardTiming, Ticket

from .config import DenseSpec, MoeSpec
from .router import route
from .weights import HostWeights

MAX_TOKENS_PER_REQUEST = 128  # kMaxTokens of the wire
NUM_LANES = 2


@dataclass(slots=True)
class TimingSum:
    """ForwardTiming summed over the FFN layers of a forward."""

    prepare_us: float = 0.0
    send_us: float = 0.0
    wait_us: float = 0.0
    fetch_us: float = 0.0

    def add(self, t: ForwardTiming) -> None:
        self.prepare_us += t.prepare_us
        self.send_us += t.send_us
        self.wait_us += t.wait_us
        self.fetch_us += t.fetch_us

    def total(self) -> ForwardTiming:
        return ForwardTiming(self.prepare_us, self.send_us, self.wait_us, self.fetch_us)


class FabricFfn:
    """One layer: x [tokens, hidden] -> [tokens, hidden] f32. Long batches go out in turn over both lanes."""

    def __init__(
        self, spec: DenseSpec | MoeSpec, weights: HostWeights, prefix: str, layer: int, fabric: Fabric
    ) -> None:
        self._layer, self._fabric = layer, fabric
        self._moe = spec if isinstance(spec, MoeSpec) else None
        self._gate = self._bias = self._shared_gate = None
        if self._moe is not None:
            self._gate = weights.tensor(f"{prefix}mlp.gate.weight")
            if self._moe.router.correction_bias:
                self._bias = weights.tensor(f"{prefix}mlp.gate.e_score_correction_bias")
            if self._moe.shared_gate:
                self._shared_gate = weights.tensor(f"{prefix}mlp.shared_expert_gate.weight")

    def __call__(self, x: torch.Tensor, timing: TimingSum) -> torch.Tensor:
        host_x = x.to("cpu", torch.float32).contiguous().numpy()
        out = np.empty_like(host_x)
        self._forward(host_x, out, *self._routes(x), timing)
        return torch.from_numpy(out).to(x.device)

    def into(self, x: F32, out: F32, timing: TimingSum) -> None:
        """The same from and to arrays of the host's."""
        routes = (None, None) if self._moe is None else self._routes(torch.from_numpy(x))
        self._forward(x, out, *routes, timing)

    def _forward(
        self, host_x: F32, out: F32, experts: U32 | None, expert_weights: F32 | None, timing: TimingSum
    ) -> None:
        if host_x.shape[0] <= MAX_TOKENS_PER_REQUEST:
            timing.add(self._fabric.wait(self._fabric.submit(self._layer, host_x, experts, expert_weights), out))
            return
        under_way: list[tuple[Ticket, slice]] = []
        for i, first in enumerate(range(0, host_x.shape[0], MAX_TOKENS_PER_REQUEST)):
            rows = slice(first, first + MAX_TOKENS_PER_REQUEST)
            if len(under_way) == NUM_LANES:
                ticket, done = under_way.pop(0)
                timing.add(self._fabric.wait(ticket, out[done]))
            of_rows = None if experts is None else experts[rows]
            weights_of_rows = None if expert_weights is None else expert_weights[rows]
            ticket = self._fabric.submit(self._layer, host_x[rows], of_rows, weights_of_rows, lane=i % NUM_LANES)
            under_way.append((ticket, rows))
        for ticket, done in under_way:
            timing.add(self._fabric.wait(ticket, out[done]))

    def _routes(self, x: torch.Tensor) -> tuple[U32 | None, F32 | None]:
        if self._moe is None or self._gate is None:
            return None, None
        ids, weights = route(x, self._gate, self._moe.router, self._bias)
        if self._moe.shared_intermediate:
            shared = torch.full_like(ids[:, :1], self._moe.router.num_experts)
            strength = torch.ones_like(weights[:, :1])
            if self._shared_gate is not None:
                strength = torch.sigmoid(x @ self._shared_gate.T)
            ids, weights = torch.cat((ids, shared), dim=1), torch.cat((weights, strength), dim=1)
        return ids.to("cpu").numpy().astype(np.uint32), weights.to("cpu").contiguous().numpy()
