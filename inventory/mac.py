"""MAC addresses: the identity of a duck, whatever notation a person wrote it in."""

from __future__ import annotations

import re

from duckfleet.inventory.errors import OperatorError

_NOTATIONS = (
    re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}"),
    re.compile(r"[0-9a-f]{2}(-[0-9a-f]{2}){5}"),
    re.compile(r"[0-9a-f]{4}(\.[0-9a-f]{4}){2}"),
    re.compile(r"[0-9a-f]{12}"),
)


class BadMac(OperatorError):
    """Not a MAC address, or one that no single machine can have."""


def normalise_octets(text: str) -> str:
    """Six octets in any usual notation as `aa:bb:cc:dd:ee:ff`; says nothing about whose they may be."""
    lowered = text.strip().lower()
    if not any(notation.fullmatch(lowered) for notation in _NOTATIONS):
        raise BadMac(f"{text!r} is not six octets; write it like 00:e0:4c:12:34:56")
    digits = re.sub(r"[^0-9a-f]", "", lowered)
    return ":".join(digits[i : i + 2] for i in range(0, 12, 2))


def parse_mac(text: str) -> str:
    """Canonical form (`aa:bb:cc:dd:ee:ff`) of a MAC that one machine can have.

    Raises `BadMac` for anything else: malformed, all-zero, broadcast, multicast (IEEE 802: the first octet is odd).
    """
    mac = normalise_octets(text)
    if mac == "00:00:00:00:00:00":
        raise BadMac(f"{text!r} is all zero: the firmware did not tell; read the label on the box")
    if mac == "ff:ff:ff:ff:ff:ff":
        raise BadMac(f"{text!r} is the broadcast address: every box would wake")
    if int(mac[:2], 16) & 1:
        raise BadMac(f"{text!r} is a multicast address: no box has it as its own")
    return mac


def mac_bytes(mac: str) -> bytes:
    """The six bytes of a canonical MAC."""
    return bytes.fromhex(mac.replace(":", ""))
