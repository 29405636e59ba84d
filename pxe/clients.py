"""Who is served where: the part of a site that the boot service needs, as frozen records."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from duckfleet.inventory.site import Site

DEFAULT_HTTP_PORT = 7023


@dataclass(frozen=True, slots=True)
class BootDomain:
    """A broadcast domain: the host's interface and address in it, and the ports ducks there use."""

    name: str
    interface: str
    host_address: str
    prefix_len: int
    broadcast: str
    control_port: int
    data_port: int

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"{self.host_address}/{self.prefix_len}", strict=False)


@dataclass(frozen=True, slots=True)
class BootClient:
    """A machine that may boot from us. `mac` is canonical and is its identity."""

    mac: str
    name: str
    address: str
    domain: str

    @property
    def label(self) -> str:
        """The name as a host name (RFC 1123): what is not allowed in one becomes a hyphen."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")[:63] or "duck"


@dataclass(frozen=True, slots=True)
class BootSite:
    """Every domain and every machine of them."""

    domains: tuple[BootDomain, ...]
    clients: tuple[BootClient, ...]

    def domain(self, name: str) -> BootDomain:
        return next(domain for domain in self.domains if domain.name == name)

    def by_mac(self, mac: str) -> BootClient | None:
        return next((client for client in self.clients if client.mac == mac), None)

    def by_address(self, address: str) -> BootClient | None:
        return next((client for client in self.clients if client.address == address), None)

    def domain_of_interface(self, interface: str) -> BootDomain | None:
        return next((domain for domain in self.domains if domain.interface == interface), None)


def from_site(site: Site) -> BootSite:
    """The boot service's view of a site."""
    domains = tuple(
        BootDomain(d.name, d.interface, d.host_address, d.prefix_len, d.broadcast, d.control_port, d.data_port)
        for d in site.domains
    )
    return BootSite(domains, tuple(BootClient(d.mac, d.name, d.address, d.domain) for d in site.ducks))
