"""One frozen dataclass for each struct of wire.hpp, field by field in the same order.

`zero` fields are reserved; `duckd --layout` prints the C++ side, and a test holds these against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .constants import CONTROL_MAGIC, DATA_MAGIC, VERSION
from .packed import (
    F32,
    U8,
    U16,
    U32,
    U64,
    Bytes3,
    Bytes4,
    Bytes7,
    Bytes16,
    Bytes24,
    Bytes32,
    Packed,
    Text16,
    Text32,
    Text64,
)

NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class DataHeader(Packed):
    """Header of every datagram."""

    magic: U32 = DATA_MAGIC
    version: U16 = VERSION
    kind: U8 = 0
    lane: U8 = 0
    session: U64 = 0
    generation: U32 = 0
    step: U32 = 0
    layer: U16 = 0
    wire_dtype: U8 = 0
    part: U8 = 0
    slice: U16 = 0
    rank: U16 = 0
    num_tokens: U16 = 0
    top_k: U16 = 0
    hidden: U32 = 0
    message_bytes: U32 = 0
    offset: U32 = 0
    fragment_bytes: U32 = 0
    key_id: U32 = 0
    sequence: U64 = 0
    tag: Bytes16 = bytes(16)


@dataclass(frozen=True, slots=True)
class Route(Packed):
    """An expert of a token and its weight."""

    expert: U32
    weight: F32


@dataclass(frozen=True, slots=True)
class Range(Packed):
    """Missing bytes of a message."""

    offset: U32
    bytes: U32


@dataclass(frozen=True, slots=True)
class ControlHeader(Packed):
    """Header of every control frame."""

    magic: U32 = CONTROL_MAGIC
    version: U16 = VERSION
    type: U16 = 0
    request_id: U32 = 0
    length: U32 = 0


@dataclass(frozen=True, slots=True)
class Hello(Packed):
    """First frame of a connection, in clear."""

    mode: U8
    zero: Bytes7 = bytes(7)
    ephemeral: Bytes32 = bytes(32)


@dataclass(frozen=True, slots=True)
class HelloReply(Packed):
    """The duck's answer to a hello, in clear."""

    mode: U8
    zero: Bytes7 = bytes(7)
    ephemeral: Bytes32 = bytes(32)
    confirm: Bytes16 = bytes(16)
    stream_header: Bytes24 = bytes(24)


@dataclass(frozen=True, slots=True)
class PeerHello(Packed):
    """First frame of a duck to another that holds a chunk, in clear."""

    ticket: U64
    ephemeral: Bytes32


@dataclass(frozen=True, slots=True)
class ErrorReply(Packed):
    """Code of a refusal; text follows."""

    code: U16
    zero: U16 = 0


@dataclass(frozen=True, slots=True)
class IdentityReply(Packed):
    """What a duck is, holds and serves."""

    protocol_version: U16
    rank: U16
    tp: U16
    format: U8
    flags: U8
    generation: U32
    plan_generation: U32
    num_layers: U32
    hidden: U32
    num_chunks: U32
    num_assigned: U32
    held_bytes: U64
    session: U64
    instance: U64
    mem_total_bytes: U64
    mem_available_bytes: U64
    num_threads: U16
    num_cpus: U16
    data_port: U16
    tag_algorithms: U8
    wire_dtypes: U8
    model_digest: Bytes32
    shard_digest: Bytes32
    kernels: Text16
    duckd_version: Text32
    hostname: Text64


@dataclass(frozen=True, slots=True)
class Assign(Packed):
    """Place in a plan; the digests of the shard follow in canonical order."""

    generation: U32
    num_layers: U32
    hidden: U32
    rank: U16
    tp: U16
    format: U8
    zero: Bytes3
    num_chunks: U32
    model_digest: Bytes32


@dataclass(frozen=True, slots=True)
class Configure(Packed):
    """Start of a session: what both sides must agree upon, and its keys."""

    session: U64
    generation: U32
    num_layers: U32
    hidden: U32
    rank: U16
    tp: U16
    format: U8
    wire_dtype: U8
    tag_algorithm: U8
    zero: U8
    host_address: Bytes4
    host_port: U16
    reply_fragment_bytes: U16
    domain_key_id: U32
    duck_key_id: U32
    pace_bytes_per_s: U64
    domain_key: Bytes32
    duck_key: Bytes32
    model_digest: Bytes32
    shard_digest: Bytes32


@dataclass(frozen=True, slots=True)
class ChunkBegin(Packed):
    """A logical chunk is about to come."""

    digest: Bytes32
    total_bytes: U64


@dataclass(frozen=True, slots=True)
class ChunkData(Packed):
    """Bytes of a chunk follow."""

    offset: U64


@dataclass(frozen=True, slots=True)
class ChunkDrop(Packed):
    """Forget a chunk."""

    digest: Bytes32


@dataclass(frozen=True, slots=True)
class ChunkOffer(Packed):
    """Whoever has the ticket may get the chunk, once."""

    ticket: U64
    secret: Bytes32 = field(repr=False)
    digest: Bytes32
    lifetime_s: U32


@dataclass(frozen=True, slots=True)
class ChunkFetch(Packed):
    """Get a chunk from another duck with the ticket that it was given."""

    ticket: U64
    secret: Bytes32 = field(repr=False)
    digest: Bytes32
    address: Bytes4
    port: U16
    silence_ms: U32
    limit_ms: U32


@dataclass(frozen=True, slots=True)
class ProbeRequest(Packed):
    """Ask for a probe; `seconds` of each long measurement that the flags ask for."""

    flags: U32 = 0
    seconds: U32 = 0


@dataclass(frozen=True, slots=True)
class ShutdownRequest(Packed):
    """End the daemon."""

    flags: U32 = 0


ALL_MESSAGES: tuple[type[Packed], ...] = (
    DataHeader,
    Route,
    Range,
    ControlHeader,
    Hello,
    HelloReply,
    PeerHello,
    ErrorReply,
    IdentityReply,
    Assign,
    Configure,
    ChunkBegin,
    ChunkData,
    ChunkDrop,
    ChunkOffer,
    ChunkFetch,
    ProbeRequest,
    ShutdownRequest,
)
