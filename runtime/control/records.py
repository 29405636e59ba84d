"""What the control client takes and gives: digests as hex, formats and dtypes by name."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from typing import Self

from duckfleet.inventory.errors import InternalError
from duckfleet.inventory.plan import FORMATS, ShardPlan
from duckfleet.runtime.wire import Assign, Configure, IdentityReply, TagAlgorithm, WireDtype, shard_digest
from duckfleet.runtime.wire.constants import IDENTITY_ASSIGNED, IDENTITY_CONFIGURED


@dataclass(frozen=True, slots=True)
class Identity:
    """What a duck says it is, holds and serves."""

    protocol_version: int
    duckd_version: str
    hostname: str
    instance: int  # random at each start of duckd
    assigned: bool
    configured: bool
    generation: int  # the highest of a roster that it has accepted
    plan_generation: int  # the highest of a plan
    rank: int
    tp: int
    format: str  # "" when not assigned
    num_layers: int
    hidden: int
    model_digest: str
    shard_digest: str
    session: int
    num_chunks: int  # held, assigned or not
    num_assigned: int
    held_bytes: int
    mem_total_bytes: int
    mem_available_bytes: int
    num_threads: int
    num_cpus: int
    data_port: int
    kernels: str
    tag_algorithms: tuple[TagAlgorithm, ...]
    wire_dtypes: tuple[str, ...]

    @classmethod
    def from_wire(cls, reply: IdentityReply) -> Self:
        """From the duck's answer; names that this host does not know become "?"."""
        assigned = bool(reply.flags & IDENTITY_ASSIGNED)
        return cls(
            protocol_version=reply.protocol_version,
            duckd_version=reply.duckd_version,
            hostname=reply.hostname,
            instance=reply.instance,
            assigned=assigned,
            configured=bool(reply.flags & IDENTITY_CONFIGURED),
            generation=reply.generation,
            plan_generation=reply.plan_generation,
            rank=reply.rank,
            tp=reply.tp,
            format=(FORMATS[reply.format] if reply.format < len(FORMATS) else "?") if assigned else "",
            num_layers=reply.num_layers,
            hidden=reply.hidden,
            model_digest=reply.model_digest.hex(),
            shard_digest=reply.shard_digest.hex(),
            session=reply.session,
            num_chunks=reply.num_chunks,
            num_assigned=reply.num_assigned,
            held_bytes=reply.held_bytes,
            mem_total_bytes=reply.mem_total_bytes,
            mem_available_bytes=reply.mem_available_bytes,
            num_threads=reply.num_threads,
            num_cpus=reply.num_cpus,
            data_port=reply.data_port,
            kernels=reply.kernels,
            tag_algorithms=tuple(a for a in TagAlgorithm if reply.tag_algorithms >> a & 1),
            wire_dtypes=tuple(d.name.lower() for d in WireDtype if reply.wire_dtypes >> d & 1),
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """A duck's place in a plan and the chunks that make up its shard, in canonical order."""

    generation: int
    rank: int
    tp: int
    format: str
    hidden: int
    num_layers: int
    model_digest: str
    digests: tuple[str, ...]

    @classmethod
    def from_plan(cls, plan: ShardPlan, rank: int) -> Self:
        """What `rank` holds by `plan`, whose digests must be filled."""
        digests = tuple(plan.chunks[i].digest for i in plan.holders[rank])
        if not all(digests):
            raise InternalError(f"the plan of {plan.model} has chunks without a digest")
        return cls(
            generation=plan.generation,
            rank=rank,
            tp=plan.tp,
            format=plan.format,
            hidden=plan.hidden,
            num_layers=plan.num_layers,
            model_digest=plan.model_digest,
            digests=digests,
        )

    @property
    def shard_digest(self) -> str:
        return shard_digest(self.digests)

    def to_wire(self) -> bytes:
        header = Assign(
            generation=self.generation,
            num_layers=self.num_layers,
            hidden=self.hidden,
            rank=self.rank,
            tp=self.tp,
            format=FORMATS.index(self.format),
            zero=bytes(3),
            num_chunks=len(self.digests),
            model_digest=bytes.fromhex(self.model_digest),
        )
        return header.pack() + b"".join(map(bytes.fromhex, self.digests))


@dataclass(frozen=True, slots=True)
class Ticket:
    """Makes two ducks know each other for one chunk: the one that holds it is told of it, and the one that fetches."""

    number: int
    secret: bytes = field(repr=False)  # 32 random bytes
    digest: str

    @classmethod
    def make(cls, digest: str) -> Self:
        """A fresh one. It is good for one connection."""
        return cls(secrets.randbits(64), secrets.token_bytes(32), digest)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """A session as one duck must know it. Keys are fresh for every configure: their sequences start anew."""

    session: int  # random, 64 bits, not 0
    generation: int
    rank: int
    tp: int
    format: str
    hidden: int
    num_layers: int
    model_digest: str
    shard_digest: str
    host_address: str  # requests come from here, replies go there
    host_port: int
    wire_dtype: str = "f32"
    tag_algorithm: TagAlgorithm = TagAlgorithm.NONE
    domain_key_id: int = 0
    duck_key_id: int = 0
    domain_key: bytes = field(default=bytes(32), repr=False)
    duck_key: bytes = field(default=bytes(32), repr=False)
    reply_fragment_bytes: int = 1344  # of payload, a multiple of 64
    pace_bytes_per_s: int = 0

    def to_wire(self) -> bytes:
        return Configure(
            session=self.session,
            generation=self.generation,
            num_layers=self.num_layers,
            hidden=self.hidden,
            rank=self.rank,
            tp=self.tp,
            format=FORMATS.index(self.format),
            wire_dtype=WireDtype[self.wire_dtype.upper()],
            tag_algorithm=self.tag_algorithm,
            zero=0,
            host_address=ipaddress.IPv4Address(self.host_address).packed,
            host_port=self.host_port,
            reply_fragment_bytes=self.reply_fragment_bytes,
            domain_key_id=self.domain_key_id,
            duck_key_id=self.duck_key_id,
            pace_bytes_per_s=self.pace_bytes_per_s,
            domain_key=self.domain_key,
            duck_key=self.duck_key,
            model_digest=bytes.fromhex(self.model_digest),
            shard_digest=bytes.fromhex(self.shard_digest),
        ).pack()
