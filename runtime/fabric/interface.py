"""What the decoder asks of a fabric, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ForwardTiming:
    """Where the time of one FFN forward went, in microseconds, as the host saw it."""

    prepare_us: float
    send_us: float
    wait_us: float
    fetch_us: float


class Ticket(Protocol):
    """A forward under way."""


class Fabric(Protocol):
    """FFN layers computed elsewhere. Two lanes: one request of each lane may be under way at once."""

    def submit(
        self,
        layer: int,
        x: F32,  # [num_tokens, hidden], C-contiguous; must not change before wait() returns
        experts: U32 | None = None,  # [num_tokens, top_k] ascending in each row; None: dense layer
        weights: F32 | None = None,  # [num_tokens, top_k]
        lane: int = 0,
    ) -> Ticket:
        """Start the forward and return at once."""
        ...

    def wait(self, ticket: Ticket, out: F32) -> ForwardTiming:
        """Write the sum over all slices into `out` [num_tokens, hidden].

        Raises `DuckLost` (names the duck) when the deadline passes, `FabricClosed` after close().
        """
        ...

    def stats(self) -> dict[str, object]:
        """Counters by kind (dropped datagrams, retransmissions, bytes) and the slowest duck."""
        ...

    def close(self) -> None: ...
