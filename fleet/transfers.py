"""Who gets which chunk from whom: from this host, or from another duck that has it by then. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """All chunks from this host, from each other wherever they can be had there, or whichever is faster by domain."""

    HOST = "host"
    PEERS = "peers"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Link:
    """What a domain's chunks go through, in Mbit/s; 0: not known."""

    domain: str
    uplink_mbps: int  # of this host's port there
    duck_mbps: tuple[int, ...]  # of the ducks that lack something


def domains_with_peers(source: Source, links: Sequence[Link]) -> frozenset[str]:
    """Where ducks fetch from each other. `AUTO`: where the host's port is slower than its ducks together."""
    if source is Source.HOST:
        return frozenset()
    return frozenset(link.domain for link in links if source is Source.PEERS or _is_narrow(link))


def _is_narrow(link: Link) -> bool:
    return len(link.duck_mbps) > 1 and 0 not in link.duck_mbps and 0 < link.uplink_mbps < sum(link.duck_mbps)


@dataclass(frozen=True, slots=True)
class Needs:
    """One duck: what it lacks and what it holds of the plan, by digest."""

    domain: str
    lacking: Mapping[str, int]  # digest -> bytes, in the order in which they are sent
    held: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A chunk that a duck is to get; `giver` is another duck by its place, None this host."""

    digest: str
    num_bytes: int
    giver: int | None = None


def schedule(
    ducks: Sequence[Needs], with_peers: AbstractSet[str], not_here: Collection[str] = ()
) -> tuple[tuple[Transfer, ...], ...]:
    """Transfers by duck: what comes from the host first, then what comes from peers, in the order they will have it.

    In a domain `with_peers` the host sends each chunk once at most, and not at all where a duck of it holds it. A giver
    holds its chunk from the beginning or has it from the host, so that nobody waits for somebody who waits. The bytes
    that are taken from the host, and those that are given, are spread evenly; ties go to the lowest place. Chunks that
    are `not_here`, in this host's store, come from any duck that holds them, and stay the host's where there is none.
    """
    plan = _Spread(ducks)
    for domain in sorted({duck.domain for duck in ducks}):
        places = [place for place, duck in enumerate(ducks) if duck.domain == domain]
        for digest in dict.fromkeys(digest for place in places for digest in ducks[place].lacking):
            takers = [place for place in places if digest in ducks[place].lacking]
            holders = [place for place in places if digest in ducks[place].held]
            if digest in not_here:
                holders = holders or [place for place, duck in enumerate(ducks) if digest in duck.held]
            elif domain not in with_peers:
                holders = []
            if not holders and domain in with_peers and len(takers) > 1:
                first = min(takers, key=lambda place: (plan.from_host_bytes[place], place))
                plan.take(first, digest, None)
                takers.remove(first)
                holders = [first]
            for taker in takers:
                giver = min(holders, key=lambda place: (plan.given_bytes[place], place), default=None)
                plan.take(taker, digest, giver)
    return tuple(plan.ordered(place) for place in range(len(ducks)))


class _Spread:
    """What was decided so far."""

    def __init__(self, ducks: Sequence[Needs]) -> None:
        self._ducks = ducks
        self.from_host_bytes = [0] * len(ducks)
        self.given_bytes = [0] * len(ducks)
        self._comes_after_bytes: dict[tuple[int | None, str], int] = {}  # from the host, by place and digest
        self._transfers: list[list[Transfer]] = [[] for _ in ducks]

    def take(self, taker: int, digest: str, giver: int | None) -> None:
        num_bytes = self._ducks[taker].lacking[digest]
        if giver is None:
            self.from_host_bytes[taker] += num_bytes
            self._comes_after_bytes[taker, digest] = self.from_host_bytes[taker]
        else:
            self.given_bytes[giver] += num_bytes
        self._transfers[taker].append(Transfer(digest, num_bytes, giver))

    def ordered(self, taker: int) -> tuple[Transfer, ...]:
        """A chunk that is still to come to its giver is fetched after those that come there earlier."""
        of_host = [t for t in self._transfers[taker] if t.giver is None]
        of_peers = [t for t in self._transfers[taker] if t.giver is not None]
        of_peers.sort(key=lambda t: self._comes_after_bytes.get((t.giver, t.digest), 0))  # 0: its giver holds it
        return (*of_host, *of_peers)
