"""Who computes which vector, and in how large fragments: pure, from roster and plan."""

from __future__ import annotations

from dataclasses import dataclass

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.wire import FRAGMENT_UNIT_BYTES, WHOLE_SLICE, DataHeader

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
    """A domain, its ducks, and the vectors they owe in each layer (indices into `vectors`)."""

    domain: RosterDomain
    ducks: tuple[RosterEntry, ...]
    data_port: int
    fragment_bytes: int
    vectors: tuple[Vector, ...]
    vectors_of_layer: tuple[tuple[int, ...], ...]


def fragment_bytes(mtu: int) -> int:
    """Payload of one datagram on a network with this MTU: whole units, no IP fragmentation."""
    room = min(mtu - _IP_AND_UDP_HEADER_BYTES, _MAX_UDP_PAYLOAD_BYTES) - DataHeader.num_bytes()
    if room < FRAGMENT_UNIT_BYTES:
        raise OperatorError(f"an MTU of {mtu} leaves no room for data; check the site file")
    return room // FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES


def layers_of_slice(plan: ShardPlan) -> list[set[int]]:
    """By slice: the layers in which it has columns at all."""
    layers: list[set[int]] = [set() for _ in range(plan.tp)]
    for chunk in plan.chunks:
        layers[chunk.slice].add(chunk.layer)
    return layers


def lay_out(roster: Roster, plan: ShardPlan) -> tuple[DomainLayout, ...]:
    """Every domain that has ducks, in the roster's order; each rank computes its own slice.

    Raises `OperatorError` when roster and plan, or the ducks of a domain, do not go together.
    """
    if roster.tp != plan.tp:
        raise OperatorError(
            f"the roster has {roster.tp} ducks, the plan of {plan.model} is cut for {plan.tp}; "
            "make a new plan, or a roster with as many ducks"
        )
    for rank, entry in enumerate(roster.entries):
        if entry.rank != rank:
            raise OperatorError(f"the roster has duck {entry.duck} in place {rank} with rank {entry.rank}")
    layers = layers_of_slice(plan)
    known = {domain.name for domain in roster.domains}
    for entry in roster.entries:
        if entry.domain not in known:
            raise OperatorError(f"duck {entry.duck} is in domain {entry.domain!r}, which the roster does not describe")
    layouts = []
    for domain in roster.domains:
        ducks = tuple(entry for entry in roster.entries if entry.domain == domain.name)
        if not ducks:
            continue
        ports = {entry.data_port for entry in ducks}
        if len(ports) > 1:
            raise OperatorError(
                f"the ducks of domain {domain.name} have different data ports {sorted(ports)}: "
                "one broadcast could not reach them all"
            )
        vectors = tuple(Vector(duck=i, slice=entry.rank) for i, entry in enumerate(ducks))
        layouts.append(
            DomainLayout(
                domain=domain,
                ducks=ducks,
                data_port=ports.pop(),
                fragment_bytes=fragment_bytes(domain.mtu),
                vectors=vectors,
                vectors_of_layer=tuple(
                    tuple(i for i, v in enumerate(vectors) if layer in layers[v.slice])
                    for layer in range(plan.num_layers)
                ),
            )
        )
    return tuple(layouts)
