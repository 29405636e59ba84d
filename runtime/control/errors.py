"""What a duck can refuse, each by its own type."""

from __future__ import annotations

from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.errors import IdentityMismatch
from duckfleet.runtime.wire import ErrorCode


class DuckRefused(MachineError):
    """The duck answered with an error; `code` says which."""

    code: ErrorCode | None = None


class ProtocolViolation(MachineError):
    """What came back is not the control protocol."""


class ProtocolVersionMismatch(IdentityMismatch):
    """duckd and host speak different versions of the protocol."""


class ModelDigestMismatch(IdentityMismatch):
    """The duck's shard was cut from another model."""


class ShardDigestMismatch(IdentityMismatch):
    """The duck's assigned chunks are not those of the plan."""


class RankMismatch(IdentityMismatch):
    """The duck was assigned another rank."""


class TpMismatch(IdentityMismatch):
    """The duck's shard was cut for another number of ranks."""


class FormatMismatch(IdentityMismatch):
    """The duck's weights are in another number format."""


class NumLayersMismatch(IdentityMismatch):
    """The duck's shard has another number of layers."""


class HiddenMismatch(IdentityMismatch):
    """The duck's shard has another hidden size."""


class WireDtypeMismatch(IdentityMismatch):
    """The duck does not take activations of this type."""


class TagAlgorithmMismatch(IdentityMismatch):
    """The duck cannot compute this kind of tag."""


class AuthRequired(DuckRefused):
    """A duck with keys was spoken to without."""


class AuthNotConfigured(DuckRefused):
    """A duck started with --no-auth was spoken to with keys."""


class HostNetworkDown(MachineError):
    """This host has no network to the duck at all: nothing is said about the duck."""


class TooManyConnections(DuckRefused):
    """The duck's places for control connections are taken."""


class StaleGeneration(DuckRefused):
    """The duck has accepted a newer generation already."""


class NotAssigned(DuckRefused):
    """The duck has no shard to serve."""


class ChunkMissing(DuckRefused):
    """A chunk of the assignment is not held."""


class ChunkUnfit(DuckRefused):
    """A chunk does not fit the assignment it is named in."""


class ChunkDigestMismatch(DuckRefused):
    """The bytes that arrived do not have the digest that was announced."""


class ChunkInvalid(DuckRefused):
    """The bytes are not a logical chunk, or hold NaN codes."""


class ChunkSizeRefused(DuckRefused):
    """The announced size is out of bounds."""


class DuckOutOfMemory(DuckRefused):
    """There is no room for the chunk."""


class PeerFailed(DuckRefused):
    """A chunk that the duck was to fetch did not come from the other duck; the message names that and the chunk."""


class ChunkInUse(DuckRefused):
    """An assigned chunk cannot be dropped."""


_TYPES: dict[ErrorCode, type[DuckRefused | IdentityMismatch]] = {
    ErrorCode.PROTOCOL_VERSION: ProtocolVersionMismatch,
    ErrorCode.AUTH_REQUIRED: AuthRequired,
    ErrorCode.AUTH_NOT_CONFIGURED: AuthNotConfigured,
    ErrorCode.TOO_MANY_CONNECTIONS: TooManyConnections,
    ErrorCode.MODEL_DIGEST: ModelDigestMismatch,
    ErrorCode.SHARD_DIGEST: ShardDigestMismatch,
    ErrorCode.RANK: RankMismatch,
    ErrorCode.TP: TpMismatch,
    ErrorCode.FORMAT: FormatMismatch,
    ErrorCode.NUM_LAYERS: NumLayersMismatch,
    ErrorCode.HIDDEN: HiddenMismatch,
    ErrorCode.WIRE_DTYPE: WireDtypeMismatch,
    ErrorCode.TAG_ALGORITHM: TagAlgorithmMismatch,
    ErrorCode.STALE_GENERATION: StaleGeneration,
    ErrorCode.NOT_ASSIGNED: NotAssigned,
    ErrorCode.CHUNK_MISSING: ChunkMissing,
    ErrorCode.CHUNK_UNFIT: ChunkUnfit,
    ErrorCode.CHUNK_DIGEST: ChunkDigestMismatch,
    ErrorCode.CHUNK_INVALID: ChunkInvalid,
    ErrorCode.CHUNK_SIZE: ChunkSizeRefused,
    ErrorCode.NO_MEMORY: DuckOutOfMemory,
    ErrorCode.CHUNK_IN_USE: ChunkInUse,
    ErrorCode.PEER_FAILED: PeerFailed,
}


_OTHER_BUILD = "; is its duckd of another build than this host? Install the same duckfleet on both"
_ADVICE = {
    ErrorCode.MALFORMED: _OTHER_BUILD,
    ErrorCode.UNKNOWN_TYPE: _OTHER_BUILD,
    ErrorCode.AUTH_REQUIRED: "; leave --no-auth out",
    ErrorCode.AUTH_NOT_CONFIGURED: " (--no-auth), or end its daemon and start it with keys",
    ErrorCode.NO_MEMORY: "; it keeps chunks of models placed before, too: `duckctl reboot` empties a duck that booted "
    "from the network",
}
"""What the host adds to the duck's own words: the duck does not know our options."""


def error_from(code: int, message: str) -> MachineError:
    """The exception for an error reply; codes of a newer duck become plain `DuckRefused`."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return DuckRefused(f"{message} (error {code}, unknown to this host: is its duckfleet older than the duck's?)")
    error = _TYPES.get(known, DuckRefused)(message + _ADVICE.get(known, ""))
    if isinstance(error, DuckRefused):
        error.code = known
    return error
