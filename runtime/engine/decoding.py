"""What the engine asks of a decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from duckfleet.runtime.fabric.interface import ForwardTiming

if TYPE_CHECKING:
    import torch


class Cache(Protocol):
    """The state of one sequence in a decoder."""

    @property
    def length(self) -> int:
        """Positions that are filled."""
        ...

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` positions."""
        ...


CacheT = TypeVar("CacheT", bound=Cache)


class Decoder(Protocol[CacheT]):
    """One sequence a call; used from one thread."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> Iterable[int]: ...

    @property
    def timing(self) -> ForwardTiming:
        """Of the latest forward, summed over its layers."""
        ...

    def new_cache(self, max_len: int) -> CacheT: ...

    def forward(self, tokens: Sequence[int], cache: CacheT, *, all_logits: bool = False) -> torch.Tensor:
        """Append `tokens` to the cache; logits [len(tokens) or 1, vocab] f32. Raises `DuckLost`."""
        ...
