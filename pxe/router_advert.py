"""An answer to iPXE's search for an IPv6 router: none here. Pure.

iPXE configures IPv4 and IPv6 side by side and goes on when both have ended. Where no router answers its solicitations,
that is after half a minute of silence. A Router Advertisement with a lifetime of 0 and without prefixes (RFC 4861,
sections 4.2 and 6.2.3) ends the search at once and makes nobody use us as a router.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ETH_P_IPV6 = 0x86DD
ICMPV6 = 58
ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT = 133, 134
HOP_LIMIT = 255  # anything less came from beyond this link
ALL_NODES = bytes.fromhex("ff020000000000000000000000000001")
ALL_NODES_MAC = bytes.fromhex("333300000001")
_IPV6_AT, _ICMP_AT = 14, 54


@dataclass(frozen=True, slots=True)
class Solicitor:
    """Who looks for a router: MAC (6 bytes) and IPv6 address (16 bytes, all zero when it has none yet)."""

    mac: bytes
    address: bytes


def solicitor(frame: bytes) -> Solicitor | None:
    """Who looks for a router with this Ethernet frame; None if it is something else."""
    if len(frame) < _ICMP_AT + 8 or frame[12:14] != ETH_P_IPV6.to_bytes(2, "big"):
        return None
    next_header, hop_limit = frame[_IPV6_AT + 6], frame[_IPV6_AT + 7]
    if (next_header, hop_limit, frame[_ICMP_AT]) != (ICMPV6, HOP_LIMIT, ROUTER_SOLICITATION):
        return None
    return Solicitor(frame[6:12], frame[_IPV6_AT + 8 : _IPV6_AT + 24])


def advertisement(to: Solicitor, our_mac: bytes) -> bytes:
    """An Ethernet frame that says: no router, no prefix, no DHCPv6. To one machine, or to all if it has no address."""
    source = link_local(our_mac)
    # Both addresses of one kind: iPXE drops what was sent to its MAC and not to its own IPv6 address.
    to_mac, target = (to.mac, to.address) if any(to.address) else (ALL_NODES_MAC, ALL_NODES)
    body = struct.pack("!BBHBBHII", ROUTER_ADVERTISEMENT, 0, 0, 64, 0, 0, 0, 0)
    pseudo_header = source + target + struct.pack("!II", len(body), ICMPV6)
    body = body[:2] + struct.pack("!H", _checksum(pseudo_header + body)) + body[4:]
    header = struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, HOP_LIMIT) + source + target
    return to_mac + our_mac + ETH_P_IPV6.to_bytes(2, "big") + header + body


def link_local(mac: bytes) -> bytes:
    """fe80:: with the interface identifier of a MAC (RFC 4291, appendix A)."""
    return b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:6]


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
