"""The roster: the frozen contract between fleet and runtime about which duck is which rank."""

from __future__ import annotations

from dataclasses import dataclass

DUCK_RESERVE_BYTES = 3 << 29
"""Kernel, initramfs in memory, duckd's buffers: what a duck does not have for weights; of a small duck a quarter."""


def room_bytes(ram_bytes: int) -> int:
    """What a duck with so much memory has for packed chunks."""
    return ram_bytes - min(DUCK_RESERVE_BYTES, ram_bytes // 4)


@dataclass(frozen=True, slots=True)
class RosterDomain:
    """A broadcast domain as the fabric sees it."""

    name: str
    host_address: str  # the host's own address in this domain; replies go there
    broadcast: str  # where one datagram reaches every duck of the domain
    mtu: int


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One duck and the rank it serves."""

    rank: int
    duck: str  # its name in the site file
    address: str
    domain: str
    control_port: int
    data_port: int
    ram_bytes: int
    read_bandwidth_bytes_per_s: float
    num_threads: int
    evidence_at_s: float  # Unix time of the newest probe that this entry rests on


@dataclass(frozen=True, slots=True)
class Roster:
    """Healthy ducks by rank, their domains, spares, and a generation that ducks refuse to go back from."""

    generation: int
    made_at_s: float
    domains: tuple[RosterDomain, ...]
    entries: tuple[RosterEntry, ...]  # entries[r].rank == r
    spares: tuple[RosterEntry, ...] = ()
    signature: str = ""  # hex; over the canonical JSON without this field

    @property
    def tp(self) -> int:
        return len(self.entries)
