"""What a published model takes of each duck and of the host, and what stands in its way; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.inventory.roster import DUCK_RESERVE_BYTES, room_bytes
from duckfleet.runtime.planner import coverage, cut, held_bytes, replicate

from .budget import HostBudget, host_budget
from .catalogue import CatalogueEntry
from .published import published_config, published_tensors


@dataclass(frozen=True, slots=True)
class DuckRam:
    """A duck by name, and its memory."""

    name: str
    ram_bytes: int


@dataclass(frozen=True, slots=True)
class FleetBudget:
    """Bytes by place, in the ducks as their chunks are packed; the host holds the rest of the checkpoint."""

    model: str
    format: str
    ducks: tuple[DuckRam, ...]
    slice_bytes: tuple[int, ...]  # by rank, as is what follows
    replica_bytes: tuple[int, ...]
    covered: tuple[float, ...]  # of a duck's slice, what others hold as well, 0 to 1
    logical_bytes: int  # of all chunks
    host: HostBudget
    published_bytes: int  # all tensors of the published checkpoint
    blocked: tuple[str, ...]  # sentences; empty when it fits

    @property
    def counted_bytes(self) -> int:
        """Weights on ducks and host: the published checkpoint, but for copies in it and scales that two ducks share."""
        return self.logical_bytes + self.host.weight_bytes + self.host.embedding_bytes

    @property
    def headroom_bytes(self) -> tuple[int, ...]:
        """What each duck has left beside the system's reserve; negative where its slice does not fit."""
        held = zip(self.ducks, self.slice_bytes, self.replica_bytes, strict=True)
        return tuple(room_bytes(duck.ram_bytes) - own - replicas for duck, own, replicas in held)


DEFAULT_CTX = 16384


def fleet_budget(
    entry: CatalogueEntry,
    ducks: Sequence[DuckRam],
    *,
    format: str | None = None,
    ctx: int | None = None,
    gpu_bytes: int | None = None,
    parts: int = 1,
    replicas: float = 0.0,
) -> FleetBudget:
    """An even cut over `ducks` in their order, with at most `replicas` of a second copy where it fits.

    `ctx`: tokens of the cache; None: 16,384, or as many as the model has positions for.
    `gpu_bytes`: memory that host weights and cache must fit into. Raises `UnsupportedModel` for a family that the
    decoder does not have, ValueError for a number of ducks or a format.
    """
    plan = cut(entry.shape(), len(ducks), parts, format=format or entry.format)
    rooms = [room_bytes(duck.ram_bytes) for duck in ducks]
    slices = held_bytes(plan)
    blocked = []
    short = [duck for duck, room, own in zip(ducks, rooms, slices, strict=True) if own > room]
    if short:
        least = min(short, key=lambda duck: duck.ram_bytes)
        more = f" ({len(short) - 1} more are short)" if len(short) > 1 else ""
        blocked.append(
            f"needs {max(slices) / 2**30:.1f} GiB on each of {len(ducks)} beside {DUCK_RESERVE_BYTES / 2**30:g} for "
            f"its system; {least.name} has {least.ram_bytes / 2**30:.1f}{more}"
        )
    elif replicas:
        plan = replicate(plan, rooms, fraction=replicas)
    held = held_bytes(plan)
    config, tensors = published_config(entry), published_tensors(entry)
    ctx = min(DEFAULT_CTX, config.max_positions) if ctx is None else ctx
    host = host_budget(config, tensors, ctx)
    if gpu_bytes is not None and host.total_bytes > gpu_bytes:
        fits = max(0, gpu_bytes - host.weight_bytes) // host.cache_bytes_per_token
        blocked.append(
            f"needs {host.total_bytes / 2**30:.1f} GiB of GPU memory for a context of {ctx}; "
            f"there are {gpu_bytes / 2**30:.1f}"
            + (f": --ctx {fits} would fit" if fits else ", too little for its weights")
        )
    if ctx > config.max_positions:
        blocked.append(f"the model has {config.max_positions} positions, fewer than the context of {ctx}")
    return FleetBudget(
        model=entry.name,
        format=plan.format,
        ducks=tuple(ducks),
        slice_bytes=tuple(slices),
        replica_bytes=tuple(all_ - own for all_, own in zip(held, slices, strict=True)),
        covered=tuple(coverage(plan)),
        logical_bytes=sum(chunk.num_bytes for chunk in plan.chunks),
        host=host,
        published_bytes=sum(t.num_bytes for t in tensors.values()),
        blocked=tuple(blocked),
    )
