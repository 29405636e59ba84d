"""Find boxes that the site file does not know: pure from here on down to `propose`; `listen` is the edge."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.mac import BadMac, parse_mac
from duckfleet.inventory.site import Domain, Duck, Site

if TYPE_CHECKING:
    from scapy.packet import Packet
    from scapy.sendrecv import AsyncSniffer

OPEN_TIMEOUT_S = 5.0
BPF = "arp or (udp and (port 67 or port 68))"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A box that was heard in a domain: by a DHCP request, or by ARP."""

    mac: str
    domain: str
    source: str  # `dhcp` or `arp`
    address: str = ""  # what it calls itself in ARP, or asks for in DHCP
    hostname: str = ""
    vendor_class: str = ""  # option 60: firmware says PXEClient
    at_s: float = 0.0


def sighting_of(packet: Packet, domain: Domain, at_s: float) -> Sighting | None:
    """What a packet tells about its sender; None when it is nothing to us, or from the host itself."""
    from scapy.layers.dhcp import BOOTP, DHCP
    from scapy.layers.l2 import ARP

    if packet.haslayer(BOOTP) and packet[BOOTP].op == 1:
        mac = _mac(bytes(packet[BOOTP].chaddr)[:6].hex(":"))
        options = _options(packet[DHCP].options) if packet.haslayer(DHCP) else {}
        if mac is None:
            return None
        return Sighting(
            mac,
            domain.name,
            "dhcp",
            str(options.get("requested_addr", "")),
            _text(options.get("hostname")),
            _text(options.get("vendor_class_id")),
            at_s,
        )
    if packet.haslayer(ARP):
        mac = _mac(packet[ARP].hwsrc)
        address = str(packet[ARP].psrc)
        if mac is None or address == domain.host_address:
            return None
        return Sighting(mac, domain.name, "arp", "" if address == "0.0.0.0" else address, at_s=at_s)
    return None


def _options(options: Iterable[Any]) -> dict[str, Any]:
    return {option[0]: option[1] for option in options if isinstance(option, tuple) and len(option) >= 2}


def _text(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return "".join(char for char in text if char.isprintable())[:64]


def _mac(text: str) -> str | None:
    try:
        return parse_mac(text)
    except BadMac:
        return None


def merge(sightings: Iterable[Sighting]) -> list[Sighting]:
    """One sighting a MAC, in the order of their first: what DHCP told stands, ARP adds an address."""
    merged: dict[str, Sighting] = {}
    for seen in sightings:
        known = merged.get(seen.mac)
        if known is None or (known.source == "arp" and seen.source == "dhcp"):
            merged[seen.mac] = seen if known is None else _with_address(seen, known.address)
        else:
            merged[seen.mac] = _with_address(known, seen.address)
    return list(merged.values())


def _with_address(sighting: Sighting, address: str) -> Sighting:
    from dataclasses import replace

    return sighting if sighting.address or not address else replace(sighting, address=address)


def propose(site: Site, sightings: Sequence[Sighting]) -> list[tuple[Duck, Sighting]]:
    """A duck for each unknown MAC: its own address where that is free in the domain, else the domain's first free one.

    Sightings for which a domain has no room are left out.
    """
    taken = {duck.address for duck in site.ducks}
    known = {duck.mac for duck in site.ducks}
    proposals = []
    for seen in merge(sightings):
        if seen.mac in known:
            continue
        domain = site.domain(seen.domain)
        free = [address for address in domain.addresses if address not in taken]
        if not free:
            continue
        address = seen.address if seen.address in free else free[0]
        taken.add(address)
        notes = " ".join(part for part in (seen.hostname, seen.vendor_class) if part)
        proposals.append((Duck(seen.mac, address, address, domain.name, notes=notes), seen))
    return proposals


def listen(
    site: Site,
    seconds: float,
    heard: Callable[[Sighting], None] = lambda _sighting: None,
    ready: Callable[[], None] = lambda: None,
) -> list[Sighting]:
    """Listen on every domain's interface at once, for so long or until ctrl-C.

    Raises `OperatorError` when that is not allowed or not possible.
    """
    import scapy.layers.dhcp
    import scapy.layers.inet
    import scapy.layers.l2  # noqa: F401  # a layer is known to scapy once it is imported
    from scapy.error import Scapy_Exception
    from scapy.sendrecv import AsyncSniffer

    sightings: list[Sighting] = []

    def take(packet: Packet, domain: Domain) -> None:
        seen = sighting_of(packet, domain, time.time())
        if seen is not None:
            sightings.append(seen)
            heard(seen)

    sniffers = []
    opened = threading.Semaphore(0)
    try:
        for domain in site.domains:
            sniffer = AsyncSniffer(
                iface=domain.interface,
                filter=BPF,
                store=False,
                prn=lambda packet, domain=domain: take(packet, domain),
                started_callback=opened.release,
            )
            sniffer.start()
            sniffers.append((domain, sniffer))
        for _ in sniffers:
            opened.acquire(timeout=OPEN_TIMEOUT_S)
        _require_open(sniffers)
        ready()
        with contextlib.suppress(KeyboardInterrupt):  # ctrl-C: enough was heard
            time.sleep(seconds)
    finally:
        for _domain, sniffer in sniffers:
            if sniffer.running:
                with contextlib.suppress(OSError, Scapy_Exception):  # told by `_require_open`
                    sniffer.stop()
    _require_open(sniffers)
    return sightings


def _require_open(sniffers: Iterable[tuple[Domain, AsyncSniffer]]) -> None:
    """Raises `OperatorError` for an interface that cannot be listened on."""
    for domain, sniffer in sniffers:
        error = getattr(sniffer, "exception", None)
        if error is None:
            continue
        why = str(error)
        if isinstance(error, PermissionError):
            why = "it needs root (CAP_NET_RAW)"
        elif "libpcap" in why:
            why = "libpcap is not installed: apt install libpcap0.8"
        raise OperatorError(f"cannot listen on {domain.interface} (domain {domain.name}): {why}")
