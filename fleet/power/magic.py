"""The magic packet (AMD, "Magic Packet Technology", 1995): six bytes of 0xFF, the MAC 16 times, a SecureOn password."""

from __future__ import annotations

from wakeonlan import create_magic_packet

from duckfleet.inventory.mac import normalise_octets, parse_mac

PLAIN_BYTES = 102
SECURE_BYTES = 108
ETHERTYPE = 0x0842
_SYNC = b"\xff" * 6


def build(mac: str, secure_on: str = "") -> bytes:
    """The payload for a MAC in any notation: exactly 102 bytes, 108 with a password."""
    target = parse_mac(mac)
    if secure_on:
        target += "/" + normalise_octets(secure_on)
    payload: bytes = create_magic_packet(target)
    if len(payload) != (SECURE_BYTES if secure_on else PLAIN_BYTES):
        raise AssertionError(f"a magic packet of {len(payload)} bytes")
    return payload


def find(payload: bytes) -> tuple[str, str] | None:
    """The (MAC, password or "") of a magic packet anywhere in a payload, as a network card looks for it; or None."""
    start = payload.find(_SYNC)
    while start >= 0:
        body = payload[start + 6 : start + PLAIN_BYTES]
        if len(body) == 96 and body == body[:6] * 16 and body[:6] != _SYNC:
            trailer = payload[start + PLAIN_BYTES : start + SECURE_BYTES]
            return body[:6].hex(":"), trailer.hex(":") if len(trailer) == 6 else ""
        start = payload.find(_SYNC, start + 1)
    return None
