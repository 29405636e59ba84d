"""What a published model takes of each duck and of the host, and what stands in its way; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.runtime.planner import cut

from .budget import HostBudget, host_budget
from .catalogue import CatalogueEntry
from .published import published_config, published_tensors

# Kernel, initramfs in memory, duckd's buffers: what a duck does not have for weights.
DUCK_RESERVE_BYTES = 3 << 29


@dataclass(frozen=True, slots=True)
class DuckRam:
    """A duck by name, and its memory."""

    name: str
    ram_bytes: int


@dataclass(frozen=True, slots=True)
class FleetBudget:
    """Bytes by place. `duck_bytes[rank]` are chunks; the host holds the rest of the checkpoint."""

    model: str
    format: str
    ducks: tuple[DuckRam, ...]
    duck_bytes: tuple[int, ...]
    host: HostBudget
    published_bytes: int  # all tensors of the published checkpoint
    blocked: tuple[str, ...]  # sentences; empty when it fits

    @property
    def counted_bytes(self) -> int:
        """Weights on ducks and host: the published checkpoint, but for copies in it and scales that two ducks share."""
        return sum(self.duck_bytes) + self.host.weight_bytes + self.host.embedding_bytes

    @property
    def spare_bytes(self) -> tuple[int, ...]:
        """What each duck has left; part of a second copy may go there."""
        return tuple(
            d.ram_bytes - DUCK_RESERVE_BYTES - held for d, held in zip(self.ducks, self.duck_bytes, strict=True)
        )


def fleet_budget(
    entry: CatalogueEntry,
    ducks: Sequence[DuckRam],
    *,
    format: str | None = None,
    ctx: int,
    gpu_bytes: int | None = None,
) -> FleetBudget:
    """An even cut over `ducks` in their order. `gpu_bytes`: memory that host weights and cache must fit into.

    Raises `UnsupportedModel` for a family that the decoder does not have, ValueError for a number of ducks or a format.
    """
    format = format or entry.format
    plan = cut(entry.shape(), len(ducks), format=format)
    held = tuple(sum(plan.chunks[i].num_bytes for i in chunks) for chunks in plan.holders)
    config, tensors = published_config(entry), published_tensors(entry)
    host = host_budget(config, tensors, ctx)
    blocked = []
    short = [d for d, n in zip(ducks, held, strict=True) if n + DUCK_RESERVE_BYTES > d.ram_bytes]
    if short:
        need = (max(held) + DUCK_RESERVE_BYTES) / 2**30
        which = f"{short[0].name} has {short[0].ram_bytes / 2**30:.1f}"
        more = f", and so {len(short) - 1} more" if len(short) > 1 else ""
        blocked.append(f"needs {need:.1f} GiB on each of {len(ducks)} ducks; {which}{more}")
    if gpu_bytes is not None and host.total_bytes > gpu_bytes:
        fits = max(0, gpu_bytes - host.weight_bytes) // host.cache_bytes_per_token
        blocked.append(
            f"needs {host.total_bytes / 2**30:.1f} GiB of GPU memory for a context of {ctx}; "
            f"there are {gpu_bytes / 2**30:.1f}"
            + (f": --ctx {fits} would fit" if fits else ", too little for its weights")
        )
    if ctx > config.max_positions:
        blocked.append(f"the model has {config.max_positions} positions, fewer than the context of {ctx}")
    published = sum(t.num_bytes for t in tensors.values())
    return FleetBudget(entry.name, format, tuple(ducks), held, host, published, tuple(blocked))
