"""The host's half of the handshake against an independent responder, and what it must refuse."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from nacl import bindings as sodium

from duckfleet.runtime.wire import FleetKeys, Hello, HelloReply
from duckfleet.runtime.wire.handshake import HandshakeFailed, HostHandshake, SealError


class Responder:
    """A duck's half, written from docs/wire.md with another X25519."""

    def __init__(self, public: bytes, enrolment: bytes, hello_frame: bytes) -> None:
        ephemeral = X25519PrivateKey.generate()
        self.public = ephemeral.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        theirs = Hello.unpack(hello_frame[16:])
        ee = ephemeral.exchange(X25519PublicKey.from_public_bytes(theirs.ephemeral))
        se = ephemeral.exchange(X25519PublicKey.from_public_bytes(public))
        name = b"duckfleet control v1: KNpsk2 X25519 BLAKE2b secretstream"
        transcript = hashlib.blake2b(name + public + hello_frame + self.public, digest_size=32).digest()
        self.root = hashlib.blake2b(transcript + ee + se, key=enrolment, digest_size=64).digest()
        self.push = sodium.crypto_secretstream_xchacha20poly1305_state()
        key = hashlib.blake2b(b"duck to host", key=self.root, digest_size=32).digest()
        self.stream_header = sodium.crypto_secretstream_xchacha20poly1305_init_push(self.push, key)

    def reply(self, **changes: object) -> HelloReply:
        confirm = hashlib.blake2b(b"confirm", key=self.root, digest_size=16).digest()
        fields: dict[str, object] = {
            "mode": 1,
            "ephemeral": self.public,
            "confirm": confirm,
            "stream_header": self.stream_header,
        }
        return HelloReply(**(fields | changes))  # type: ignore[arg-type]


def test_both_sides_get_the_same_keys() -> None:
    keys = FleetKeys.generate()
    host = HostHandshake(keys)
    duck = Responder(keys.public, keys.enrolment, host.hello)
    stream = host.finish(duck.reply())
    sealed = sodium.crypto_secretstream_xchacha20poly1305_push(duck.push, b"from the duck")
    assert stream.open(sealed) == b"from the duck"
    pull = sodium.crypto_secretstream_xchacha20poly1305_state()
    key = hashlib.blake2b(b"host to duck", key=duck.root, digest_size=32).digest()
    sodium.crypto_secretstream_xchacha20poly1305_init_pull(pull, stream.first_bytes[4:], key)
    sealed = stream.seal(b"from the host")
    assert int.from_bytes(sealed[:4], "little") == len(sealed) - 4
    assert sodium.crypto_secretstream_xchacha20poly1305_pull(pull, sealed[4:])[0] == b"from the host"


def test_a_frame_changed_or_out_of_order_does_not_open() -> None:
    keys = FleetKeys.generate()
    host = HostHandshake(keys)
    duck = Responder(keys.public, keys.enrolment, host.hello)
    stream = host.finish(duck.reply())
    first = sodium.crypto_secretstream_xchacha20poly1305_push(duck.push, b"one")
    second = sodium.crypto_secretstream_xchacha20poly1305_push(duck.push, b"two")
    for bad in (second, first[:-1], bytes([first[0] ^ 1]) + first[1:], b""):
        with pytest.raises(SealError):
            stream.open(bad)
    assert stream.open(first) == b"one"


@pytest.mark.parametrize("wrong", ["public", "enrolment"])
def test_a_stranger_is_refused(wrong: str) -> None:
    keys, other = FleetKeys.generate(), FleetKeys.generate()
    host = HostHandshake(keys)
    duck = Responder(
        other.public if wrong == "public" else keys.public,
        other.enrolment if wrong == "enrolment" else keys.enrolment,
        host.hello,
    )
    with pytest.raises(HandshakeFailed, match="proof is wrong"):
        host.finish(duck.reply())


def test_a_changed_reply_is_refused() -> None:
    keys = FleetKeys.generate()
    host = HostHandshake(keys)
    duck = Responder(keys.public, keys.enrolment, host.hello)
    with pytest.raises(HandshakeFailed, match="proof"):
        host.finish(duck.reply(confirm=bytes(16)))
    with pytest.raises(HandshakeFailed, match="proof"):
        host.finish(duck.reply(ephemeral=Responder(keys.public, keys.enrolment, host.hello).public))
    with pytest.raises(HandshakeFailed, match="plain mode"):
        host.finish(duck.reply(mode=0))
    with pytest.raises(HandshakeFailed, match="not a usable"):
        host.finish(duck.reply(ephemeral=bytes(32)))
