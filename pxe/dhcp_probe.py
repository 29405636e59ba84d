"""Is another DHCP server answering here? Asks, as a machine that nobody knows, and collects the offers."""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import dataclass

from duckfleet.inventory.errors import OperatorError

ETH_P_IP = 0x0800
BROADCAST_FLAG = 0x8000
OFFER_TIMEOUT_S = 5.0  # some servers first ping an address for three seconds


@dataclass(frozen=True, slots=True)
class Offer:
    """A DHCPOFFER that came back: who made it, what it gives, which boot file it names."""

    server: str
    address: str
    boot_file: str


def other_servers(interface: str, timeout_s: float = OFFER_TIMEOUT_S) -> tuple[Offer, ...]:
    """Offers to a DHCPDISCOVER (RFC 2131) for a made-up MAC. Raises `OperatorError` without the right to ask."""
    from scapy.layers.dhcp import BOOTP, DHCP
    from scapy.layers.l2 import Ether

    mac = b"\x02" + secrets.token_bytes(5)
    transaction_id = secrets.randbits(32)
    offers: dict[str, Offer] = {}
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP)) as raw:
            raw.bind((interface, 0))
            raw.send(_discover(mac, transaction_id))
            deadline = time.monotonic() + timeout_s
            while (left_s := deadline - time.monotonic()) > 0:
                raw.settimeout(left_s)
                try:
                    frame = Ether(raw.recv(4096))
                except TimeoutError:
                    break
                if (
                    BOOTP not in frame
                    or DHCP not in frame
                    or frame[BOOTP].xid != transaction_id
                    or frame[BOOTP].op != 2
                ):
                    continue
                options = {option[0]: option[1] for option in frame[DHCP].options if isinstance(option, tuple)}
                server = str(options.get("server_id") or frame[BOOTP].siaddr)
                boot_file = frame[BOOTP].file.rstrip(b"\0").decode("ascii", errors="replace")
                offers[server] = Offer(server, str(frame[BOOTP].yiaddr), boot_file)
    except OSError as error:
        raise OperatorError(f"cannot ask for DHCP on {interface}: {error.strerror}") from error
    return tuple(offers[server] for server in sorted(offers))


def _discover(mac: bytes, transaction_id: int) -> bytes:
    from scapy.layers.dhcp import BOOTP, DHCP
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    packet = (
        Ether(src=mac.hex(":"), dst="ff:ff:ff:ff:ff:ff")
        / IP(src="0.0.0.0", dst="255.255.255.255")
        / UDP(sport=68, dport=67)
        / BOOTP(chaddr=mac, xid=transaction_id, flags=BROADCAST_FLAG)
        / DHCP(options=[("message-type", "discover"), ("param_req_list", [1, 3, 66, 67]), "end"])
    )
    return bytes(packet)
