"""Give every duck the chunks that it lacks: all ducks at once, in bounded memory, picking up where a stop left off."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.reach import connect, on_all
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.control import ChunkDigestMismatch, ControlClient
from duckfleet.runtime.wire import FleetKeys

TRIES_A_CHUNK = 3
ROOM_TO_WORK_BYTES = 1 << 29
"""What a duck needs beside the packed chunks: one on its way, the system."""


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """What one duck holds of the plan now. `error` empty: all of it."""

    duck: Duck
    rank: int
    num_chunks: int
    total_bytes: int
    moved_bytes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """Progress of one duck: bytes to move in all, and moved since the last report."""

    duck: Duck
    to_move_bytes: int
    moved_bytes: int


def place_all(
    site: Site,
    keys: FleetKeys | None,
    plan: ShardPlan,
    ducks: Sequence[Duck],
    chunks_dir: Path,
    report: Callable[[Moved], None] = lambda _moved: None,
    *,
    may_drop: bool = True,
) -> list[PlacementResult]:
    """Place the plan on its holders, ranks first, then spares; results in that order. A duck that fails does not stop
    others.

    `may_drop`: a duck that lacks the room forgets what is not of this plan, an assignment to another one included.
    """
    if len(ducks) != len(plan.holders):
        raise OperatorError(f"the plan of {plan.model} is made for {len(plan.holders)} ducks, not {len(ducks)}")
    rank_of = {duck.mac: rank for rank, duck in enumerate(ducks)}
    results: dict[str, PlacementResult] = {}

    def work(duck: Duck) -> PlacementResult:
        return place_one(site, keys, plan, rank_of[duck.mac], duck, chunks_dir, report, may_drop)

    for duck, result in on_all(ducks, work):
        if isinstance(result, MachineError):
            wanted = _wanted(plan, rank_of[duck.mac])
            total = sum(chunk.num_bytes for chunk in wanted.values())
            result = PlacementResult(duck, rank_of[duck.mac], len(wanted), total, 0, str(result))
        results[duck.mac] = result
    return [results[duck.mac] for duck in ducks]


def place_one(
    site: Site,
    keys: FleetKeys | None,
    plan: ShardPlan,
    rank: int,
    duck: Duck,
    chunks_dir: Path,
    report: Callable[[Moved], None],
    may_drop: bool,
) -> PlacementResult:
    """Send one duck what it lacks. Raises a `MachineError` naming the duck when that cannot be done."""
    wanted = _wanted(plan, rank)
    total_bytes = sum(chunk.num_bytes for chunk in wanted.values())
    with connect(site, duck, keys) as client:
        held = client.have(list(wanted))
        lacking = [chunk for chunk, is_held in zip(wanted.values(), held, strict=True) if not is_held]
        to_move_bytes = sum(chunk.num_bytes for chunk in lacking)
        available_bytes = client.identity().mem_available_bytes
        if may_drop and 0 < available_bytes < to_move_bytes + ROOM_TO_WORK_BYTES:
            client.keep_only(list(wanted))  # what an earlier plan left here
        report(Moved(duck, to_move_bytes, 0))
        for chunk in lacking:
            put_file(
                client,
                duck,
                chunks_dir / chunk.digest,
                chunk.num_bytes,
                lambda sent: report(Moved(duck, to_move_bytes, sent)),
            )
    return PlacementResult(duck, rank, len(wanted), total_bytes, to_move_bytes)


def put_file(
    client: ControlClient,
    duck: Duck,
    path: Path,
    num_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Send the duck a chunk of the store, whose file is named by its digest; again when it was spoilt on its way.

    Raises a `MachineError` that names the duck, `OperatorError` for a file that cannot be read or has another length.
    """
    digest = path.name
    with _mapped(path, num_bytes) as content:
        for attempt in range(TRIES_A_CHUNK):
            try:
                client.put_chunk(digest, content, progress)
                return
            except ChunkDigestMismatch as error:
                if hashlib.blake2b(content, digest_size=32).hexdigest() != digest:
                    raise _spoilt_here(duck, path) from error
                if attempt == TRIES_A_CHUNK - 1:  # the duck threw it away
                    raise


def _spoilt_here(duck: Duck, path: Path) -> MachineError:
    """Remove a chunk of which this host's own copy is damaged, so that it is made again."""
    path.unlink(missing_ok=True)
    return MachineError(
        f"duck {duck.name} lacks chunk {path.name[:12]}…, and this host's copy of it in {path.parent} was damaged: "
        "it is removed now, `duckctl place` again makes it anew"
    )


def _wanted(plan: ShardPlan, rank: int) -> Mapping[str, Chunk]:
    return {plan.chunks[index].digest: plan.chunks[index] for index in plan.holders[rank]}


class _mapped:
    """A chunk's file, mapped: the kernel reads ahead and drops behind, so memory stays bounded however large it is."""

    def __init__(self, path: Path, num_bytes: int | None) -> None:
        self._path = path
        self._num_bytes = num_bytes

    def __enter__(self) -> memoryview:
        try:
            with self._path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise OperatorError(
                f"chunk {self._path} cannot be read ({error}); `duckctl model prepare` makes it again"
            ) from error
        self._view = memoryview(self._map)
        if self._num_bytes not in (None, len(self._view)):
            raise OperatorError(
                f"chunk {self._path} has {len(self._view)} bytes instead of {self._num_bytes}; remove it, "
                f"`duckctl model prepare` makes it again"
            )
        return self._view

    def __exit__(self, *_: object) -> None:
        # The traceback of a failed sending may still hold a part of the view: then the map goes when that goes.
        with contextlib.suppress(BufferError):
            self._view.release()
            self._map.close()
