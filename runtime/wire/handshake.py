"""The host's half of the control handshake, without a socket.

Noise KNpsk2 in spirit: the duck knows the fleet's public key beforehand, the host's two X25519 agreements and the
enrolment secret make the keys, and the duck's reply proves that it knows the secret. The host proves that it has the
private key by the first frame that the duck can open. docs/wire.md has the derivation.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

from nacl.bindings import (
    crypto_scalarmult,
    crypto_scalarmult_base,
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)

from duckfleet.inventory.errors import MachineError

from .constants import MAX_CONTROL_PAYLOAD, ControlMode, ControlType
from .keys import FleetKeys
from .messages import ControlHeader, Hello, HelloReply

PROTOCOL_NAME = b"duckfleet control v1: KNpsk2 X25519 BLAKE2b secretstream"
SEAL_BYTES = int(crypto_secretstream_xchacha20poly1305_ABYTES)
STREAM_HEADER_BYTES = int(crypto_secretstream_xchacha20poly1305_HEADERBYTES)
MAX_SEALED_BYTES = ControlHeader.num_bytes() + MAX_CONTROL_PAYLOAD + SEAL_BYTES


class HandshakeFailed(MachineError):
    """The other side did not prove that it is a duck of this fleet."""


class SealError(MachineError):
    """A sealed frame does not open: tampered with, reordered, or made with another key."""


class SecretStream:
    """Both directions of an established connection; frames must be sealed and opened in order."""

    def __init__(self, push_key: bytes, pull_key: bytes, peer_header: bytes) -> None:
        self._push = crypto_secretstream_xchacha20poly1305_state()
        self._pull = crypto_secretstream_xchacha20poly1305_state()
        header = crypto_secretstream_xchacha20poly1305_init_push(self._push, push_key)
        crypto_secretstream_xchacha20poly1305_init_pull(self._pull, peer_header, pull_key)
        self.first_bytes = struct.pack("<I", len(header)) + header
        """What the host must send before its first sealed frame."""

    def seal(self, frame: bytes) -> bytes:
        """`u32 length` and the sealed frame."""
        sealed = self.push(frame)
        return struct.pack("<I", len(sealed)) + sealed

    def push(self, frame: bytes) -> bytes:
        """The sealed frame, without its length."""
        return bytes(crypto_secretstream_xchacha20poly1305_push(self._push, frame))

    def open(self, sealed: bytes) -> bytes:
        """The frame in `sealed` (without its length). Raises `SealError`."""
        try:
            frame, _ = crypto_secretstream_xchacha20poly1305_pull(self._pull, sealed)
        except (RuntimeError, ValueError, TypeError):
            raise SealError("a sealed control frame does not open") from None
        return bytes(frame)


class HostHandshake:
    """One keyed connection's beginning: send `hello`, feed the reply's payload to `finish`."""

    def __init__(self, keys: FleetKeys, *, ephemeral_private: bytes | None = None) -> None:
        self._keys = keys
        self._ephemeral = ephemeral_private or secrets.token_bytes(32)
        payload = Hello(ControlMode.KEYED, ephemeral=crypto_scalarmult_base(self._ephemeral)).pack()
        self.hello = ControlHeader(type=ControlType.HELLO, length=len(payload)).pack() + payload

    def finish(self, reply: HelloReply) -> SecretStream:
        """The connection's stream. Raises `HandshakeFailed` when the duck's proof is wrong."""
        if reply.mode != ControlMode.KEYED:
            raise HandshakeFailed("it answered a keyed hello in plain mode")
        try:
            ee = crypto_scalarmult(self._ephemeral, reply.ephemeral)
            se = crypto_scalarmult(self._keys.private, reply.ephemeral)
        except RuntimeError:
            raise HandshakeFailed("its ephemeral key is not a usable X25519 point") from None
        transcript = hashlib.blake2b(
            PROTOCOL_NAME + self._keys.public + self.hello + reply.ephemeral, digest_size=32
        ).digest()
        root = hashlib.blake2b(transcript + ee + se, key=self._keys.enrolment, digest_size=64).digest()
        if not hmac.compare_digest(_derive(root, b"confirm", 16), reply.confirm):
            raise HandshakeFailed(
                "its proof is wrong: it knows another fleet key or another enrolment secret. If the keys were rotated "
                "since it was started, boot it anew from a new image (`duckctl reboot --by power`); a lab's ducks: "
                "`duckctl lab down`, then `lab up`"
            )
        return SecretStream(_derive(root, b"host to duck", 32), _derive(root, b"duck to host", 32), reply.stream_header)


def _derive(root: bytes, label: bytes, size: int) -> bytes:
    return hashlib.blake2b(label, key=root, digest_size=size).digest()
