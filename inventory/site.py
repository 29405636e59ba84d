"""Frozen records of a site: broadcast domains, ducks, what is expected of them, how they get power."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from duckfleet.inventory import nodeset
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.mac import BadMac, parse_mac

DEFAULT_CONTROL_PORT = 7021
DEFAULT_DATA_PORT = 7022
DEFAULT_WOL_PORT = 9  # "discard", the customary port of magic packets
TEMPLATE_FIELDS = ("name", "mac", "address", "domain", "interface", "outlet")
EVIDENCE_FIELDS = (*TEMPLATE_FIELDS, "switch_port")
EVIDENCE_DRIVERS = ("command", "http", "snmp", "vm-lab")
POWER_DRIVERS = ("wol", "wol-raw", "command", "http", "person")


@dataclass(frozen=True, slots=True)
class Expectations:
    """What a healthy duck has; None: not stated, nothing is concluded."""

    ram_bytes: int | None = None
    link_mbps: int | None = None
    cpu: str | None = None  # part of the model name, any case

    def overridden_by(self, other: Expectations) -> Expectations:
        return Expectations(
            other.ram_bytes if other.ram_bytes is not None else self.ram_bytes,
            other.link_mbps if other.link_mbps is not None else self.link_mbps,
            other.cpu if other.cpu is not None else self.cpu,
        )


@dataclass(frozen=True, slots=True)
class PowerSource:
    """How a duck's power is switched. Templates know TEMPLATE_FIELDS."""

    name: str
    driver: str  # of POWER_DRIVERS
    on: str = ""  # command line, or URL
    off: str = ""
    cycle: str = ""
    method: str = "POST"  # of the HTTP driver
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class EvidenceSource:
    """Who tells of a duck from outside. `target`: a command line, URL, switch or lab; it knows EVIDENCE_FIELDS."""

    name: str
    driver: str  # of EVIDENCE_DRIVERS
    target: str
    community: str = "public"  # of SNMP
    watts: str = ""  # of HTTP: where in the answer the power is, as `a.b.c`
    relay: str = ""
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """How many ducks may start at once, so that their inrush does not trip a breaker."""

    stagger_s: float = 0.25  # between two starts
    repeats: int = 3  # magic packets a duck and round
    retry_s: float = 10.0  # a duck that stays silent gets another round after this


@dataclass(frozen=True, slots=True)
class Domain:
    """A broadcast domain and the host's port into it."""

    name: str
    interface: str
    host_address: str
    prefix_len: int
    addresses: tuple[str, ...]  # where ducks may be
    broadcast: str
    mtu: int
    wol_port: int
    control_port: int
    data_port: int

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"{self.host_address}/{self.prefix_len}", strict=False)


@dataclass(frozen=True, slots=True)
class Duck:
    """One box. Its MAC is its identity; everything else may change."""

    mac: str
    name: str
    address: str
    domain: str
    rack: str = ""
    notes: str = ""
    power: str = "wol"  # name of a PowerSource
    outlet: str = ""
    secure_on: str = ""  # six octets, or none
    expect: Expectations = field(default_factory=Expectations)
    switch_port: str = ""  # how the switch calls its port: the interface index, for SNMP


@dataclass(frozen=True)
class Site:
    """Everything the site file says, validated."""

    name: str
    path: Path
    domains: tuple[Domain, ...]
    ducks: tuple[Duck, ...]  # by address
    power_sources: tuple[PowerSource, ...]
    start: StartPolicy = StartPolicy()
    evidence: tuple[EvidenceSource, ...] = ()

    @cached_property
    def _by_key(self) -> dict[str, Duck]:
        keys = {}
        for duck in self.ducks:
            keys[duck.address] = keys[duck.mac] = duck
        keys.update({duck.name: duck for duck in self.ducks})
        return keys

    def domain(self, name: str) -> Domain:
        return next(domain for domain in self.domains if domain.name == name)

    def power_source(self, name: str) -> PowerSource:
        return next(source for source in self.power_sources if source.name == name)

    def find(self, key: str) -> Duck | None:
        """The duck of that name, address or MAC in any notation."""
        if key in self._by_key:
            return self._by_key[key]
        try:
            return self._by_key.get(parse_mac(key))
        except BadMac:
            return None

    def select(self, wanted: Sequence[str]) -> tuple[Duck, ...]:
        """Ducks named by name, address, MAC, node set or @domain, by address; none wanted: all of them.

        Raises `OperatorError` naming what matches no duck.
        """
        if not wanted:
            return self.ducks
        chosen: dict[str, Duck] = {}
        for text in wanted:
            for duck in self._match(text):
                chosen[duck.mac] = duck
        return tuple(duck for duck in self.ducks if duck.mac in chosen)

    def _match(self, text: str) -> list[Duck]:
        duck = self.find(text)
        if duck is not None:
            return [duck]
        if text.startswith("@"):
            members = [duck for duck in self.ducks if duck.domain == text[1:]]
            if not members:
                known = ", ".join("@" + domain.name for domain in self.domains)
                raise OperatorError(f"no duck in {text!r}: the domains of {self.path} are {known}")
            return members
        matches = []
        for node in nodeset.expand(text):
            duck = self.find(node)
            if duck is None:
                raise OperatorError(
                    f"no duck {node!r} in {self.path}: name it by name, address, MAC, node set or @domain "
                    f"(there: {nodeset.fold([duck.name for duck in self.ducks]) or 'no ducks yet'})"
                )
            matches.append(duck)
        return matches
