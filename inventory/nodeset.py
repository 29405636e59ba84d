"""Node sets (`10.21.1.[101-108]`), in ClusterShell's syntax."""

from __future__ import annotations

import ipaddress
import math
import re

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from duckfleet.inventory.errors import OperatorError

MAX_NODES = 1024


class BadNodeSet(OperatorError):
    """A node set that does not parse, or that is not what was asked for."""


def expand(text: str) -> tuple[str, ...]:
    """The nodes of a set, in the set's own order (numbers ascending)."""
    if _at_most(text) > MAX_NODES:
        raise BadNodeSet(f"{text!r} names too many nodes; a domain holds at most {MAX_NODES}")
    try:
        nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)  # its groups are commands of another configuration
    except NodeSetException as error:
        raise BadNodeSet(f"{text!r} is not a node set ({error}); write it like 10.21.1.[101-108]") from error
    if not nodes:
        raise BadNodeSet(f"{text!r} is an empty node set")
    return tuple(str(node) for node in nodes)


def _at_most(text: str) -> int:
    """An upper bound of how many nodes a set names, found without making them."""
    total = 0
    for pattern in re.split(r",(?![^\[]*\])", text):
        sizes = []
        for inner in re.findall(r"\[([^\]]*)", pattern):
            spans = re.findall(r"(\d+)-(\d+)", inner)
            sizes.append(inner.count(",") + 1 + sum(max(0, int(high[:18]) - int(low[:18])) for low, high in spans))
        total += math.prod(sizes)
    return total


def expand_addresses(text: str) -> tuple[str, ...]:
    """The IPv4 addresses of a node set, ascending."""
    found = []
    for node in expand(text):
        try:
            found.append(ipaddress.IPv4Address(node))
        except ValueError as error:
            raise BadNodeSet(f"{node!r} in {text!r} is not an IPv4 address") from error
    return tuple(str(address) for address in sorted(found))


def fold(nodes: list[str] | tuple[str, ...]) -> str:
    """The shortest way to write these nodes: `10.21.1.[101-104]`."""
    return str(NodeSet.fromlist(list(nodes))) if nodes else ""
