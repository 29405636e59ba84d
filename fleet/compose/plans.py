"""Shard plans: a model cut into the chunk store, and the bytes of one that need not be here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duckfleet.fleet.compose.models import stored_model
from duckfleet.fleet.compose.progress import Progress, quiet
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import ShardPlan


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan whose chunks lie in the chunk store."""

    plan: ShardPlan

    def as_generation(self, generation: int) -> str:
        """Its JSON text with a generation."""
        from duckfleet.runtime.planner import plan_to_json

        return plan_to_json(replace(self.plan, generation=generation))


def plan_of_generation(plan_text: str, generation: int) -> str:
    """The same plan with another generation."""
    return PreparedPlan(read_plan(plan_text)).as_generation(generation)


def read_plan(text: str, where: str = "plan") -> ShardPlan:
    from duckfleet.runtime.planner import plan_from_json

    return plan_from_json(text, where)


def prepare(
    models_dir: Path,
    chunks_dir: Path,
    model: str,
    *,
    tp: int,
    format: str | None = None,
    parts: int = 1,
    shares: Sequence[float] | None = None,
    room_bytes: Mapping[str, int] | None = None,
    replicas: float = 0.0,
    progress: Progress = quiet,
) -> PreparedPlan:
    """Cut a model for `tp` ducks into the chunk store; what is there already is not made again.

    `room_bytes`, by address, is what the holders (ranks, then spares) have for chunks: then the plan has as much of a
    second copy as fits, and at most `replicas` of it. Raises `OperatorError` for a model that is not here or cannot be
    cut so, and, before anything is written, naming a duck that has no room for its own slice.
    """
    from duckfleet.runtime.model import Checkpoint
    from duckfleet.runtime.model import prepare as prepare_checkpoint
    from duckfleet.runtime.planner import cut, replicate, shortfall

    stored = stored_model(models_dir, model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    try:
        if room_bytes is not None:
            bare = cut(
                checkpoint.config.ffn_shape(stored.name), tp, parts, shares, format=format or checkpoint.native_format
            )
            blocked = shortfall(bare, room_bytes)
            if blocked:
                raise OperatorError(f"{stored.name} in {bare.format} does not fit: {blocked}")
        plan = prepare_checkpoint(
            checkpoint, stored.name, chunks_dir, tp=tp, format=format, parts=parts, weights=shares, progress=progress
        )
        if room_bytes is not None:
            plan = replicate(plan, list(room_bytes.values()), fraction=replicas)
    except ValueError as error:
        raise OperatorError(f"{stored.name} cannot be cut so: {error}") from error
    return PreparedPlan(plan)


@dataclass(frozen=True, slots=True)
class PlannedDuck:
    """One duck of a plan. `covered`: how much of its slice others hold as well, 0 to 1."""

    duck: str
    ram_bytes: int
    slice_bytes: int
    replica_bytes: int
    headroom_bytes: int
    covered: float


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """Where a published model's bytes would lie; `blocked` says what stands in the way."""

    model: str
    format: str
    parts: int
    ducks: tuple[PlannedDuck, ...]
    lines: tuple[tuple[str, int], ...]
    blocked: tuple[str, ...]


def plan_budget(
    models_dir: Path,
    model: str,
    ram_bytes: Mapping[str, int],
    *,
    ctx: int | None,
    gpu_gib: float,
    format: str | None,
    parts: int,
    replicas: float,
) -> PlannedBytes:
    """Count a model of the catalogue for ducks with so much memory, by address. Raises `OperatorError`.

    Without `format` it is that of the checkpoint, if it is here, and else the catalogue's: what `place` would take.
    """
    from duckfleet.runtime.model import Checkpoint, UnknownModel
    from duckfleet.runtime.model.catalogue import entry
    from duckfleet.runtime.model.fleet_budget import DuckRam, fleet_budget

    known = entry(model)
    if format is None:
        try:
            stored = stored_model(models_dir, known.name)
            format = Checkpoint.open(stored.path, stored.folder / "derived").native_format
        except UnknownModel:
            format = known.format
    try:
        found = fleet_budget(
            known,
            [DuckRam(name, num_bytes) for name, num_bytes in ram_bytes.items()],
            format=format,
            ctx=ctx,
            gpu_bytes=int(gpu_gib * 2**30) or None,
            parts=parts,
            replicas=replicas,
        )
    except ValueError as error:
        raise OperatorError(f"{model} cannot be planned so: {error}") from error
    lines = (
        ("slices on all ducks", sum(found.slice_bytes)),
        ("replicas on all ducks", sum(found.replica_bytes)),
        *((f"host: {what}", num_bytes) for what, num_bytes in found.host.lines()),
        ("host: embedding, read from the file by rows", found.host.embedding_bytes),
        ("host: KV cache per 1,000 tokens", 1000 * found.host.cache_bytes_per_token),
        ("weights in all", found.counted_bytes),
        ("the published checkpoint", found.published_bytes),
    )
    ducks = tuple(
        PlannedDuck(
            duck=duck.name,
            ram_bytes=duck.ram_bytes,
            slice_bytes=found.slice_bytes[rank],
            replica_bytes=found.replica_bytes[rank],
            headroom_bytes=found.headroom_bytes[rank],
            covered=found.covered[rank],
        )
        for rank, duck in enumerate(found.ducks)
    )
    return PlannedBytes(found.model, found.format, parts, ducks, lines, found.blocked)


def random_chunks(folder: Path, tp: int, num_bytes: int) -> ShardPlan:
    """A plan of random weights whose chunks are written to `folder`."""
    from duckfleet.runtime.bench.random_chunks import write_random_chunks

    return write_random_chunks(folder, tp, num_bytes)
