"""Constants and enumerations of wire.hpp."""

from __future__ import annotations

from enum import IntEnum

DATA_MAGIC = 0x54444644
CONTROL_MAGIC = 0x54434644
VERSION = 1

ANY_RANK = 0xFFFF
AS_ASSIGNED = 0xFFFF
WHOLE_SLICE = 0xFF
FRAGMENT_UNIT_BYTES = 64
MAX_NACK_RANGES = 128
REST_OF_MESSAGE = 0xFFFFFFFF

MAX_CONTROL_PAYLOAD = 1 << 20
MAX_CHUNK_BYTES = 1 << 28
MAX_TOKENS = 128
MAX_TOP_K = 64
MAX_HIDDEN = 1 << 16
MAX_LAYERS = 1 << 12
MAX_TP = 64
DIGEST_BYTES = 32
MAX_HAVE = 8192
MAX_ASSIGN = 16384
MAX_OFFERS = 64
MAX_OFFER_SECONDS = 3600
MAX_FETCH_MS = 3600_000

IDENTITY_ASSIGNED = 1
IDENTITY_CONFIGURED = 2
PROBE_MEASURE = 1
PROBE_MEMORY = 2
PROBE_SUSTAINED = 4
MAX_PROBE_SECONDS = 900
CHUNK_HELD = b"\1"  # payload of kOk to ChunkBegin: nothing is to follow
SHUTDOWN_DROP_STORE = 1


class DataKind(IntEnum):
    """What a datagram is."""

    REQUEST = 1
    REPLY = 2
    NACK_REQUEST = 3
    NACK_REPLY = 4
    BUSY = 5
    ECHO = 6
    ECHO_REPLY = 7


class WireDtype(IntEnum):
    """Element type of activations in requests."""

    F32 = 0
    F16 = 1
    BF16 = 2


class TagAlgorithm(IntEnum):
    """How datagrams are authenticated."""

    NONE = 0
    AES256_GMAC = 1
    CHACHA20_POLY1305 = 2


class Direction(IntEnum):
    """First word of a tag's nonce."""

    HOST_TO_DUCK = 0
    DUCK_TO_HOST = 1


class ControlType(IntEnum):
    """Type of a control frame."""

    HELLO = 1
    HELLO_REPLY = 2
    OK = 3
    ERROR = 4
    PEER_HELLO = 5
    IDENTITY = 10
    IDENTITY_REPLY = 11
    CONFIGURE = 12
    ASSIGN = 13
    HAVE = 20
    HAVE_REPLY = 21
    CHUNK_BEGIN = 22
    CHUNK_DATA = 23
    CHUNK_END = 24
    CHUNK_DROP = 25
    CHUNK_KEEP = 26
    CHUNK_OFFER = 27
    CHUNK_FETCH = 28
    CHUNK_GET = 29
    STATS = 30
    STATS_REPLY = 31
    PROBE = 32
    PROBE_REPLY = 33
    SHUTDOWN = 40


class ControlMode(IntEnum):
    """How a control connection is protected."""

    PLAIN = 0
    KEYED = 1


class ErrorCode(IntEnum):
    """Why a duck refused; each identity mismatch has its own."""

    MALFORMED = 1
    PROTOCOL_VERSION = 2
    AUTH_REQUIRED = 3
    AUTH_NOT_CONFIGURED = 4
    TOO_MANY_CONNECTIONS = 5
    UNKNOWN_TYPE = 6
    TOO_LARGE = 7
    INTERNAL = 8
    MODEL_DIGEST = 20
    SHARD_DIGEST = 21
    RANK = 22
    TP = 23
    FORMAT = 24
    NUM_LAYERS = 25
    HIDDEN = 26
    WIRE_DTYPE = 27
    TAG_ALGORITHM = 28
    STALE_GENERATION = 30
    NOT_ASSIGNED = 31
    CHUNK_MISSING = 32
    CHUNK_UNFIT = 33
    CHUNK_DIGEST = 40
    CHUNK_INVALID = 41
    CHUNK_SIZE = 42
    NO_MEMORY = 43
    CHUNK_IN_USE = 44
    CHUNK_ORDER = 45
    PEER_FAILED = 46
