"""Over the control plane: give a duck the parts it is to serve, and take it into the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from duckfleet.inventory.errors import InternalError, MachineError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.roster import RosterEntry
from duckfleet.runtime.control import Assignment, ChunkDigestMismatch, ChunkMissing, ControlClient, Identity
from duckfleet.runtime.wire import FleetKeys

from .session import SessionTerms, agree
from .takeover import Part, PlanParts

ChunkSource = Callable[[Chunk], bytes]
"""The content of a chunk, from the host's store. Raises `OperatorError` where it is not there."""

_TRIES_A_CHUNK = 3


class TakenByAnother(MachineError):
    """The duck serves another host's session."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """How a duck was taken in. `rekeyed`: with the key that was offered, so that the host must use that from now on."""

    moved_bytes: int
    rekeyed: bool
    held: frozenset[Part]


class Admission:
    """Speaks to one duck at a time; several threads may, to different ducks."""

    def __init__(
        self,
        plan: ShardPlan,
        parts: PlanParts,
        terms: SessionTerms,
        keys: FleetKeys | None,
        chunk_source: ChunkSource | None,
        timeout_s: float,
    ) -> None:
        self._plan, self._parts, self._terms, self._keys = plan, parts, terms, keys
        self._chunk_source = chunk_source
        self._timeout_s = timeout_s
        self._by_digest = {chunk.digest: chunk for chunk in plan.chunks}

    @property
    def can_load(self) -> bool:
        """Whether there is somewhere to take chunks from."""
        return self._chunk_source is not None

    def connect(self, duck: RosterEntry) -> ControlClient:
        return ControlClient(duck.address, duck.control_port, self._keys, self._timeout_s, name=duck.duck)

    def identity(self, duck: RosterEntry) -> Identity:
        with self.connect(duck) as client:
            return client.identity()

    def assignment(self, rank: int, held: AbstractSet[Part]) -> Assignment:
        """What the plan gives `rank`, and the chunks of every part in `held`."""
        indices = set(self._plan.holders[rank]) if rank < len(self._plan.holders) else set()
        for part in held:
            indices.update(self._parts.chunks[part])
        digests = tuple(self._plan.chunks[i].digest for i in sorted(indices))
        return replace(Assignment.from_plan(replace(self._plan, holders=((),) * (rank + 1)), rank), digests=digests)

    def extend(self, duck: RosterEntry, held: AbstractSet[Part]) -> int:
        """Give a serving duck more parts, so that it holds `held`; its session goes on. Returns bytes moved."""
        assignment = self.assignment(duck.rank, held)
        with self.connect(duck) as client:
            moved = self._give(client, duck, assignment.digests)
            client.assign(assignment)
            if client.identity().session != self._terms.secret.session:
                raise MachineError(f"duck {duck.duck} left the session when it was given more parts")
        return moved

    def admit(
        self, duck: RosterEntry, held: frozenset[Part], key_id: int, key: bytes, *, from_others: bool = False
    ) -> Admitted:
        """Take a duck into the session, whatever happened to it: it gets what it lacks, its place and, where it has no
        session of ours any more, a new key. Parts beyond the plan's, which it had taken over, are only its again if it
        still serves them. A duck in another host's session is only taken `from_others`.

        Raises `TakenByAnother`; other `MachineError`s that name the duck.
        """
        ours = self._terms.secret.session
        with self.connect(duck) as client:
            identity = client.identity()
            if identity.session not in (0, ours) and not from_others:
                raise TakenByAnother(f"duck {duck.duck} serves another host's session; end that server, or this one")
            agree(self._plan, [duck], [identity], self._terms.wire_dtype)
            if identity.session == ours and identity.shard_digest == self.assignment(duck.rank, held).shard_digest:
                return Admitted(0, rekeyed=False, held=held)
            held = self._parts.held_by_plan(duck.rank)
            assignment = self.assignment(duck.rank, held)
            moved = self._give(client, duck, assignment.digests)
            client.assign(assignment)
            client.configure(self._terms.config(assignment, key_id, key))
        return Admitted(moved, rekeyed=True, held=held)

    def _give(self, client: ControlClient, duck: RosterEntry, digests: Iterable[str]) -> int:
        wanted = list(dict.fromkeys(digests))
        lacking = [digest for digest, held in zip(wanted, client.have(wanted), strict=True) if not held]
        if lacking and self._chunk_source is None:
            raise ChunkMissing(f"duck {duck.duck} lacks {len(lacking)} of {len(wanted)} chunks. Next: `duckctl place`")
        moved = 0
        for digest in lacking:
            content = self._content(digest)
            for attempt in range(_TRIES_A_CHUNK):
                try:
                    client.put_chunk(digest, content)
                    break
                except ChunkDigestMismatch:  # spoilt on its way: the duck threw it away
                    if attempt == _TRIES_A_CHUNK - 1:
                        raise
            moved += len(content)
        return moved

    def _content(self, digest: str) -> bytes:
        if self._chunk_source is None:
            raise InternalError("no source of chunks")
        return self._chunk_source(self._by_digest[digest])
