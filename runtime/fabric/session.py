"""Start of a session: every duck is asked who it is, told its shard and given its keys. Over the control plane."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from duckfleet.inventory.errors import DuckfleetError, InternalError, MachineError
from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.roster import RosterEntry
from duckfleet.runtime.control import (
    Assignment,
    ChunkMissing,
    ControlClient,
    Identity,
    SessionConfig,
    StaleGeneration,
    TagAlgorithmMismatch,
    WireDtypeMismatch,
    release_remark,
)
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.wire import FleetKeys, TagAlgorithm

from .layout import DomainLayout

KEY_BYTES = 32
_log = logging.getLogger(__name__)
T = TypeVar("T")
_MAX_PARALLEL = 64


@dataclass(frozen=True, slots=True)
class DomainKeys:
    """Fresh keys of one domain: one for its broadcasts, one for each of its ducks (in the domain's order)."""

    broadcast_id: int
    broadcast: bytes = field(repr=False)
    duck_ids: tuple[int, ...] = ()
    ducks: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SessionSecrets:
    """The random part of a session."""

    session: int
    domains: tuple[DomainKeys, ...]

    @classmethod
    def draw(cls, layouts: Sequence[DomainLayout]) -> SessionSecrets:
        """Key ids are counted from 1: domains first, then ducks by rank."""
        domains = []
        for index, layout in enumerate(layouts):
            domains.append(
                DomainKeys(
                    broadcast_id=1 + index,
                    broadcast=secrets.token_bytes(KEY_BYTES),
                    duck_ids=tuple(1 + len(layouts) + duck.rank for duck in layout.ducks),
                    ducks=tuple(secrets.token_bytes(KEY_BYTES) for _ in layout.ducks),
                )
            )
        return cls(session=secrets.randbits(64) or 1, domains=tuple(domains))


class FleetControl:
    """One control connection to each duck of a roster, used by all at once.

    With `absent_ok` ducks that do not answer are in `absent`, with their errors, and else left out.
    """

    def __init__(
        self, ducks: Sequence[RosterEntry], keys: FleetKeys | None, timeout_s: float, *, absent_ok: bool = False
    ) -> None:
        self._ducks = list(ducks)
        self.absent: dict[int, DuckLost] = {}  # by rank
        self._pool = ThreadPoolExecutor(max_workers=min(_MAX_PARALLEL, max(1, len(self._ducks))))
        self._clients: dict[int, ControlClient] = {}  # by place in `ducks`

        def connect(i: int) -> None:
            duck = self._ducks[i]
            try:
                self._clients[i] = ControlClient(duck.address, duck.control_port, keys, timeout_s, name=duck.duck)
            except DuckLost as error:
                if not absent_ok:
                    raise
                self.absent[duck.rank] = error

        try:
            self._gather(connect)
        except BaseException:
            self.close()
            raise

    @property
    def ducks(self) -> list[RosterEntry]:
        """Those that answered."""
        return [duck for duck in self._ducks if duck.rank not in self.absent]

    def close(self) -> None:
        """Idempotent."""
        self._pool.shutdown()
        for client in self._clients.values():
            client.close()
        self._clients = {}

    def each(self, work: Callable[[RosterEntry, ControlClient], T]) -> list[T]:
        """`work` on every duck that answered, in parallel; results in the order of `ducks`."""
        return self._gather(lambda i: work(self._ducks[i], self._clients[i]))

    def _gather(self, job: Callable[[int], T]) -> list[T]:
        chosen = [i for i, duck in enumerate(self._ducks) if duck.rank not in self.absent]
        futures = [self._pool.submit(job, i) for i in chosen]
        failures: list[DuckfleetError] = []
        lost: list[str] = []
        results: list[T] = []
        for duck, future in zip((self._ducks[i] for i in chosen), futures, strict=True):
            try:
                results.append(future.result())
            except DuckLost as error:
                failures.append(error)
                lost.append(duck.duck)
            except DuckfleetError as error:
                failures.append(error)
        if lost and isinstance(failures[0], DuckLost):
            raise _silent(failures, lost)
        if failures:
            raise _joined(failures)
        return results


def _silent(failures: Sequence[DuckfleetError], lost: Sequence[str]) -> DuckLost:
    """Ducks that do not answer at the start of a session, and what to do about them."""
    told = "; ".join(str(failure) for failure in failures if isinstance(failure, DuckLost))
    names = " ".join(lost)
    error = DuckLost(
        f"{told}. Next: `duckctl wake {names} --wait`, then `duckctl probe {names}` and `duckctl place` again; "
        f"`duckctl status` and `duckctl log {names}` say what is known of them",
        ducks=lost,
    )
    error.__cause__ = failures[0]
    return error


def _joined(failures: Sequence[DuckfleetError]) -> DuckfleetError:
    """The first failure, told together with the others of its kind."""
    first = failures[0]
    alike = [str(f) for f in failures if type(f) is type(first)]
    if len(alike) > 1:
        first.args = ("; ".join(alike), *first.args[1:])
    return first


def agree(plan: ShardPlan, ducks: Sequence[RosterEntry], identities: Sequence[Identity], wire_dtype: str) -> None:
    """Check what ducks say of themselves against plan and roster, before anything is changed on them.

    Raises the named error of the first disagreement. What an assignment settles (rank, tp, format, digests) is
    compared by the ducks when they are configured.
    """
    for duck, identity in zip(ducks, identities, strict=True):
        if identity.data_port != duck.data_port:
            raise MachineError(
                f"duck {duck.duck} listens for data on port {identity.data_port}, the roster says {duck.data_port}; "
                "make a new roster"
            )
        if identity.generation > plan.generation:
            raise StaleGeneration(
                f"duck {duck.duck} has accepted generation {identity.generation}, this plan is generation "
                f"{plan.generation}: another host has placed a newer one; make a new roster"
            )
        if remark := release_remark(identity.duckd_version):
            _log.warning("duck %s %s", duck.duck, remark)
        if wire_dtype not in identity.wire_dtypes:
            raise WireDtypeMismatch(
                f"duck {duck.duck} takes activations as {', '.join(identity.wire_dtypes)}, not as {wire_dtype}"
            )


def choose_tag_algorithm(
    ducks: Sequence[RosterEntry], identities: Sequence[Identity], host: Sequence[TagAlgorithm], auth: bool
) -> TagAlgorithm:
    """AES-GMAC where every CPU can, else ChaCha20-Poly1305. Raises `TagAlgorithmMismatch` naming who cannot."""
    if not auth:
        return TagAlgorithm.NONE
    for algorithm in (TagAlgorithm.AES256_GMAC, TagAlgorithm.CHACHA20_POLY1305):
        if algorithm in host and all(algorithm in identity.tag_algorithms for identity in identities):
            return algorithm
    cannot = [
        duck.duck
        for duck, identity in zip(ducks, identities, strict=True)
        if TagAlgorithm.CHACHA20_POLY1305 not in identity.tag_algorithms
    ]
    raise TagAlgorithmMismatch(f"no algorithm for datagram tags is common to host and ducks: {', '.join(cannot)}")


def require_chunks(control: FleetControl, plan: ShardPlan) -> None:
    """Raises `ChunkMissing`, naming each duck that lacks part of its shard."""

    def missing(duck: RosterEntry, client: ControlClient) -> str:
        digests = Assignment.from_plan(plan, duck.rank).digests
        lacking = client.have(digests).count(False)
        return f"{duck.duck} ({duck.address}) lacks {lacking} of {len(digests)} chunks" if lacking else ""

    lacking = [text for text in control.each(missing) if text]
    if lacking:
        raise ChunkMissing(f"weights are missing: {'; '.join(lacking)}. Next: run `duckctl place`")


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What all ducks of a session are told alike."""

    plan: ShardPlan
    layouts: Sequence[DomainLayout]
    secret: SessionSecrets
    host_ports: Sequence[int]
    tag_algorithm: TagAlgorithm
    wire_dtype: str

    def place(self, rank: int) -> tuple[int, int]:
        """(domain, duck in it) of a rank."""
        for d, layout in enumerate(self.layouts):
            for i, duck in enumerate(layout.ducks):
                if duck.rank == rank:
                    return d, i
        raise InternalError(f"rank {rank} is in no domain")

    def config(self, assignment: Assignment, key_id: int = 0, key: bytes = b"") -> SessionConfig:
        """For the duck of this assignment; with its first key unless another is given."""
        d, i = self.place(assignment.rank)
        layout, keys = self.layouts[d], self.secret.domains[d]
        return SessionConfig(
            session=self.secret.session,
            generation=self.plan.generation,
            rank=assignment.rank,
            tp=self.plan.tp,
            format=self.plan.format,
            hidden=self.plan.hidden,
            num_layers=self.plan.num_layers,
            model_digest=self.plan.model_digest,
            shard_digest=assignment.shard_digest,
            host_address=layout.domain.host_address,
            host_port=self.host_ports[d],
            wire_dtype=self.wire_dtype,
            tag_algorithm=self.tag_algorithm,
            domain_key_id=keys.broadcast_id,
            duck_key_id=key_id or keys.duck_ids[i],
            domain_key=keys.broadcast,
            duck_key=key or keys.ducks[i],
            reply_fragment_bytes=layout.fragment_bytes,
        )


def configure(control: FleetControl, terms: SessionTerms) -> None:
    """Assign each duck its rank's chunks and start the session on it.

    Raises a subclass of `IdentityMismatch`, or another `MachineError`, that names the duck.
    """

    def one(duck: RosterEntry, client: ControlClient) -> None:
        assignment = Assignment.from_plan(terms.plan, duck.rank)
        client.assign(assignment)
        client.configure(terms.config(assignment))

    control.each(one)
