"""Who computes which vector, and in how large fragments: pure, from roster and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.wire import FRAGMENT_UNIT_BYTES, WHOLE_SLICE, DataHeader

from .takeover import PlanParts, Shares

_IP_AND_UDP_HEADER_BYTES = 20 + 8
_MAX_UDP_PAYLOAD_BYTES = 65507  # over IPv4 (RFC 768, RFC 791)


@dataclass(frozen=True, slots=True)
class Vector:
    """One reply vector of a domain: `duck` (index in the domain) computes `slice`, whole or one part of it."""

    duck: int
    slice: int
    part: int = WHOLE_SLICE


@dataclass(frozen=True, slots=True)
class DomainLayout:
    """A domain and its ducks, spares among them (their ranks begin at tp)."""

    domain: RosterDomain
    ducks: tuple[RosterEntry, ...]
    data_port: int
    fragment_bytes: int


@dataclass(frozen=True, slots=True)
class Duties:
    """The vectors that the ducks of a domain owe, and in each layer which (indices into `vectors`)."""

    vectors: tuple[Vector, ...]
    vectors_of_layer: tuple[tuple[int, ...], ...]


def fragment_bytes(mtu: int) -> int:
    """Payload of one datagram on a network with this MTU: whole units, no IP fragmentation."""
    room = min(mtu - _IP_AND_UDP_HEADER_BYTES, _MAX_UDP_PAYLOAD_BYTES) - DataHeader.num_bytes()
    if room < FRAGMENT_UNIT_BYTES:
        raise OperatorError(f"an MTU of {mtu} leaves no room for data; check the site file")
    return room // FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES


def lay_out(roster: Roster, plan: ShardPlan) -> tuple[DomainLayout, ...]:
    """Every domain that has ducks, in the roster's order, spares included.

    Raises `OperatorError` when roster and plan, or the ducks of a domain, do not go together.
    """
    if roster.tp != plan.tp:
        raise OperatorError(
            f"the roster has {roster.tp} ducks, the plan of {plan.model} is cut for {plan.tp}; "
            "make a new plan, or a roster with as many ducks"
        )
    everybody = (*roster.entries, *roster.spares)
    for rank, entry in enumerate(everybody):
        if entry.rank != rank:
            raise OperatorError(f"the roster has duck {entry.duck} in place {rank} with rank {entry.rank}")
    known = {domain.name for domain in roster.domains}
    for entry in everybody:
        if entry.domain not in known:
            raise OperatorError(f"duck {entry.duck} is in domain {entry.domain!r}, which the roster does not describe")
    layouts = []
    for domain in roster.domains:
        ducks = tuple(entry for entry in everybody if entry.domain == domain.name)
        if not ducks:
            continue
        ports = {entry.data_port for entry in ducks}
        if len(ports) > 1:
            raise OperatorError(
                f"the ducks of domain {domain.name} have different data ports {sorted(ports)}: "
                "one broadcast could not reach them all"
            )
        layouts.append(DomainLayout(domain, ducks, ports.pop(), fragment_bytes(domain.mtu)))
    return tuple(layouts)


def duties(layouts: Sequence[DomainLayout], parts: PlanParts, shares: Shares) -> tuple[Duties, ...]:
    """By domain: whole slices of the ranks that do their own, parts of others' slices where shares say so."""
    place = {duck.rank: (d, i) for d, layout in enumerate(layouts) for i, duck in enumerate(layout.ducks)}
    vectors: list[dict[Vector, int]] = [{} for _ in layouts]
    of_layer: list[list[set[int]]] = [[set() for _ in range(parts.num_layers)] for _ in layouts]
    for layer, slice_, part in sorted(parts.chunks):
        own = slice_ in shares.whole
        d, i = place[slice_ if own else shares.parts[layer, slice_, part]]
        vector = Vector(i, slice_, WHOLE_SLICE if own else part)
        of_layer[d][layer].add(vectors[d].setdefault(vector, len(vectors[d])))
    return tuple(
        Duties(tuple(some), tuple(tuple(sorted(layer)) for layer in layers))
        for some, layers in zip(vectors, of_layer, strict=True)
    )
