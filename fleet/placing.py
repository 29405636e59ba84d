"""Give every duck the chunks that it lacks: all ducks at once, in bounded memory, picking up where a stop left off."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.peers import Landings, fetch_all
from duckfleet.fleet.reach import connect, on_all
from duckfleet.fleet.transfers import Needs, Transfer, schedule
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.control import ChunkDigestMismatch, ControlClient
from duckfleet.runtime.wire import FleetKeys

TRIES_A_CHUNK = 3
ROOM_TO_WORK_BYTES = 1 << 29
"""What a duck needs beside the packed chunks: one on its way, the system."""


class _Interrupted(MachineError):
    """Nothing more is to be moved."""


class SpoiltHere(MachineError):
    """This host's own copy of a chunk was damaged; it is removed."""


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """What one duck holds of the plan now. `error` empty: all of it.

    `moved_bytes` came from the host or, `peer_bytes` of them, from other ducks; `detours` says what was to come from a
    duck and came from the host after all, and why.
    """

    duck: Duck
    rank: int
    num_chunks: int
    total_bytes: int
    moved_bytes: int
    error: str = ""
    peer_bytes: int = 0
    detours: tuple[str, ...] = ()

    @property
    def host_bytes(self) -> int:
        return self.moved_bytes - self.peer_bytes


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
    with_peers: Callable[[Sequence[Duck]], AbstractSet[str]] = lambda _lacking: frozenset(),
) -> list[PlacementResult]:
    """Place the plan on its holders, ranks first, then spares; results in that order. A duck that fails does not stop
    others.

    `may_drop`: a duck that lacks the room forgets what is not of this plan, an assignment to another one included.
    `with_peers` says, of the ducks that lack something, in which domains they fetch from each other. What this host's
    store lacks is fetched from a duck that holds it, whatever the domain.
    """
    if len(ducks) != len(plan.holders):
        raise OperatorError(f"the plan of {plan.model} is made for {len(plan.holders)} ducks, not {len(ducks)}")
    with contextlib.ExitStack() as connections:
        placing = _Placing(site, keys, plan, ducks, chunks_dir, report, may_drop, connections)
        placing.survey()
        return placing.move(with_peers)


class _Placing:
    """One placement: who lacks what, then all ducks at once."""

    def __init__(
        self,
        site: Site,
        keys: FleetKeys | None,
        plan: ShardPlan,
        ducks: Sequence[Duck],
        chunks_dir: Path,
        report: Callable[[Moved], None],
        may_drop: bool,
        connections: contextlib.ExitStack,
    ) -> None:
        self._site, self._keys, self._ducks, self._chunks_dir = site, keys, ducks, chunks_dir
        self._report, self._may_drop, self._connections = report, may_drop, connections
        self._clients: dict[int, ControlClient] = {}
        self._place = {duck.mac: place for place, duck in enumerate(ducks)}
        self._wanted = [_wanted(plan, place) for place in range(len(ducks))]
        self._needs = [Needs(duck.domain, {}) for duck in ducks]
        self._failed: dict[int, MachineError] = {}
        self._stopped = threading.Event()

    def survey(self) -> None:
        """Ask every duck what it holds of what it is to hold."""

        def ask(duck: Duck) -> Needs:
            place = self._place[duck.mac]
            wanted = self._wanted[place]
            client = self._clients[place] = self._connections.enter_context(connect(self._site, duck, self._keys))
            held = dict(zip(wanted, client.have(list(wanted)), strict=True))
            lacking = {digest: chunk.num_bytes for digest, chunk in wanted.items() if not held[digest]}
            return Needs(duck.domain, lacking, wanted.keys() - lacking.keys())

        for duck, needs in on_all(self._ducks, ask):
            if isinstance(needs, MachineError):
                self._failed[self._place[duck.mac]] = needs
            else:
                self._needs[self._place[duck.mac]] = needs

    def move(self, with_peers: Callable[[Sequence[Duck]], AbstractSet[str]]) -> list[PlacementResult]:
        """Bring every duck what it lacks."""
        lacking = [duck for duck, needs in zip(self._ducks, self._needs, strict=True) if needs.lacking]
        not_here = {
            digest
            for digest in {digest for needs in self._needs for digest in needs.lacking}
            if not (self._chunks_dir / digest).exists()
        }
        transfers = schedule(self._needs, with_peers(lacking), not_here)
        landings = Landings([needs.held for needs in self._needs])
        results = {place: self._result(place, error=str(error)) for place, error in self._failed.items()}
        for place in results:
            landings.ended(place)

        def work(duck: Duck) -> PlacementResult:
            place = self._place[duck.mac]
            try:
                return self._fill(place, transfers[place], landings)
            finally:
                landings.ended(place)

        reached = [duck for duck in self._ducks if self._place[duck.mac] not in results]
        at_once = max(1, len(reached))  # they wait for each other
        for duck, result in on_all(reached, work, at_once=at_once, stop=self._stopped.set):
            place = self._place[duck.mac]
            results[place] = self._result(place, error=str(result)) if isinstance(result, MachineError) else result
        return [results[place] for place in range(len(self._ducks))]

    def _fill(self, place: int, transfers: Sequence[Transfer], landings: Landings) -> PlacementResult:
        """One duck: what the host sends, what it fetches meanwhile, and from the host what it could not fetch."""
        duck = self._ducks[place]
        to_move_bytes = sum(transfer.num_bytes for transfer in transfers)
        of_peers = [transfer for transfer in transfers if transfer.giver is not None]
        givers = {t.giver: self._ducks[t.giver] for t in of_peers if t.giver is not None}

        def moved(num_bytes: int) -> None:
            if self._stopped.is_set():
                raise _Interrupted(f"duck {duck.name}: interrupted")
            self._report(Moved(duck, to_move_bytes, num_bytes))

        def send(transfer: Transfer) -> None:
            put_file(client, duck, self._chunks_dir / transfer.digest, transfer.num_bytes, moved)
            landings.landed(place, transfer.digest)

        client = self._clients[place]
        with ThreadPoolExecutor(1, f"fetch-{duck.name}") as fetcher:
            available_bytes = client.identity().mem_available_bytes
            if self._may_drop and 0 < available_bytes < to_move_bytes + ROOM_TO_WORK_BYTES:
                client.keep_only(list(self._wanted[place]))  # what an earlier plan left here
            moved(0)
            fetching = None
            if of_peers:
                fetching = fetcher.submit(
                    fetch_all,
                    self._site,
                    self._keys,
                    duck,
                    of_peers,
                    givers,
                    landings,
                    lambda transfer: moved(transfer.num_bytes),
                )
            try:
                for transfer in transfers[: len(transfers) - len(of_peers)]:
                    send(transfer)
            finally:
                landings.ended(place)
            left = fetching.result() if fetching else []
            for transfer, reason in left:
                if not (self._chunks_dir / transfer.digest).exists():
                    raise MachineError(f"{reason}; and this host's store in {self._chunks_dir} lacks it too")
                send(transfer)
        peer_bytes = sum(t.num_bytes for t in of_peers) - sum(t.num_bytes for t, _ in left)
        return self._result(place, to_move_bytes, peer_bytes=peer_bytes, detours=tuple(reason for _, reason in left))

    def _result(
        self, place: int, moved_bytes: int = 0, *, error: str = "", peer_bytes: int = 0, detours: tuple[str, ...] = ()
    ) -> PlacementResult:
        wanted = self._wanted[place]
        total_bytes = sum(chunk.num_bytes for chunk in wanted.values())
        return PlacementResult(
            self._ducks[place], place, len(wanted), total_bytes, moved_bytes, error, peer_bytes, detours
        )


def put_file(
    client: ControlClient,
    duck: Duck,
    path: Path,
    num_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Send the duck a chunk of the store, whose file is named by its digest; again when it was spoilt on its way.

    Raises a `MachineError` that names the duck (`SpoiltHere`: this host's copy is damaged), `OperatorError` for a file
    that cannot be read or has another length.
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


def _spoilt_here(duck: Duck, path: Path) -> SpoiltHere:
    """Remove a chunk of which this host's own copy is damaged, so that it is made again."""
    path.unlink(missing_ok=True)
    return SpoiltHere(
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
