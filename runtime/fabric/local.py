"""The whole model in this process: the same kernels, the same sums, no network. For tests and small machines."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from duckfleet.fp9_kernels import Shard
from duckfleet.inventory.errors import InternalError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.runtime.errors import FabricClosed

from .interface import F32, U32, ForwardTiming, Ticket


@dataclass(slots=True, weakref_slot=True, eq=False)
class LocalTicket:
    """A forward that wait() will compute."""

    layer: int
    x: F32
    experts: U32 | None
    weights: F32 | None
    lane: int


class LocalFabric:
    """FFN layers computed here, part by part, added as docs/formats.md says ("Slice", "Layer")."""

    def __init__(
        self, plan: ShardPlan, chunk_bytes: Callable[[Chunk], bytes], threads: int = 1, impl: str | None = None
    ) -> None:
        self._plan = plan
        self._shard: Shard | None = Shard(impl=impl, threads=threads)
        parts: dict[tuple[int, int], set[int]] = {}
        for chunk in plan.chunks:
            self._shard.add_chunk(chunk_bytes(chunk))
            parts.setdefault((chunk.layer, chunk.slice), set()).add(chunk.part)
        # By layer: its non-empty slices in rank order, each with its parts in order.
        self._slices: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(plan.num_layers)]
        for (layer, slice_), which in sorted(parts.items()):
            self._slices[layer].append((slice_, tuple(sorted(which))))
        # Weak: a ticket dropped without wait() leaves its lane free.
        self._lanes: list[weakref.ref[LocalTicket] | None] = [None, None]
        self._forwards = 0
        self._wait_us = 0.0

    def submit(
        self, layer: int, x: F32, experts: U32 | None = None, weights: F32 | None = None, lane: int = 0
    ) -> LocalTicket:
        """See `interface.Fabric`. Raises `FabricClosed`, `ValueError` for shapes that cannot be."""
        if self._shard is None:
            raise FabricClosed("the fabric is closed")
        if x.ndim != 2 or x.shape[1] != self._plan.hidden or x.shape[0] == 0:
            raise ValueError(f"x is {x.shape}, wanted [num_tokens, {self._plan.hidden}]")
        if not 0 <= layer < self._plan.num_layers or not self._slices[layer]:
            raise ValueError(f"no layer {layer} in this plan")
        if self._under_way(lane) is not None:
            raise InternalError(f"lane {lane} has a forward already; wait for it first")
        ticket = LocalTicket(layer, x, experts, weights, lane)
        self._lanes[lane] = weakref.ref(ticket)
        return ticket

    def wait(self, ticket: Ticket, out: F32) -> ForwardTiming:
        """See `interface.Fabric`."""
        if not isinstance(ticket, LocalTicket) or self._under_way(ticket.lane) is not ticket:
            raise InternalError("this ticket is not under way here")
        self._lanes[ticket.lane] = None
        begun = time.perf_counter()
        for i, (slice_, parts) in enumerate(self._slices[ticket.layer]):
            vector = self._slice(ticket, slice_, parts)
            if i == 0:
                np.copyto(out, vector)
            else:
                np.add(out, vector, out=out)
        wait_us = (time.perf_counter() - begun) * 1e6
        self._forwards += 1
        self._wait_us += wait_us
        return ForwardTiming(0.0, 0.0, wait_us, 0.0)

    def _under_way(self, lane: int) -> LocalTicket | None:
        ticket = self._lanes[lane]
        return None if ticket is None else ticket()

    def _slice(self, ticket: LocalTicket, slice_: int, parts: Sequence[int]) -> F32:
        total: F32 | None = None
        for part in parts:
            if self._shard is None:
                raise FabricClosed("the fabric was closed")
            vector = self._shard.ffn_part(ticket.layer, slice_, part, ticket.x, ticket.experts, ticket.weights)
            total = vector if total is None else total + vector
        if total is None:
            raise InternalError(f"slice {slice_} without parts")
        return total

    def stats(self) -> dict[str, object]:
        """Number of forwards and their time; there is no network to count."""
        return {"transport": "local", "forwards": self._forwards, "wait_us": self._wait_us, "drops": {}, "ducks": []}

    def close(self) -> None:
        """Free the weights."""
        self._shard = None
        self._lanes = [None, None]
