"""What the native core counted and missed, put into words and tables for people. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duckfleet.inventory.roster import RosterEntry
from duckfleet.runtime.errors import DuckLost

from .layout import DomainLayout

# What was last heard from a duck about a vector, by the native core's `Heard`.
_HEARD = ("nothing heard", "it asked for parts of the request again", "it said it was computing", "part of a reply")


class MissingVector(NamedTuple):
    """A vector that did not come, as the native core reports it."""

    rank: int
    slice: int
    part: int
    heard: int
    received_bytes: int
    message_bytes: int
    silent_us: int = 0  # since anything was heard from its duck


def duck_lost(
    layer: int,
    waited_us: int,
    missing: Sequence[MissingVector],
    ducks: Mapping[int, RosterEntry],
    send_errnos: Mapping[int, int],
    why_not: str = "",
) -> DuckLost:
    """The error that names every duck whose answer is missing, and what was last heard from it.

    `ducks` and `send_errnos` (0: none) are by rank; `why_not`: why nobody could take over.
    """
    told: dict[str, str] = {}
    for vector in missing:
        duck = ducks[vector.rank]
        last = _HEARD[vector.heard]
        if vector.received_bytes:
            last = f"{vector.received_bytes} of {vector.message_bytes} bytes of its reply came"
        if send_errnos[vector.rank]:
            last += f"; sending to its domain failed: {os.strerror(send_errnos[vector.rank])}"
        told[duck.duck] = f"{duck.duck} ({duck.address}, rank {vector.rank}): {last}"
    return DuckLost(
        f"layer {layer}: no answer after {waited_us / 1e6:.3f} s from {len(told)} of {len(ducks)} ducks: "
        + ", ".join(told.values())
        + (f"; {why_not}" if why_not else ""),
        ducks=tuple(told),
    )


def traffic(layouts: Sequence[DomainLayout], native: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counters by domain and by duck, drops by kind over all domains, and who was last most often."""
    domains: list[dict[str, Any]] = []
    ducks: list[dict[str, Any]] = []
    drops: dict[str, int] = {}
    for layout, counters in zip(layouts, native, strict=True):
        for kind, count in counters["drops"].items():
            drops[kind] = drops.get(kind, 0) + count
        for duck, of_duck in zip(layout.ducks, counters["ducks"], strict=True):
            mean_us = of_duck["latency_sum_us"] / max(1, of_duck["replies"])
            of_duck = {k: v for k, v in of_duck.items() if k != "latency_sum_us"}
            ducks.append(
                {"duck": duck.duck, "address": duck.address, "rank": duck.rank, "latency_mean_us": mean_us} | of_duck
            )
        domains.append(
            {"domain": layout.domain.name, "mtu": layout.domain.mtu}
            | {k: v for k, v in counters.items() if k != "ducks"}
        )
    ducks.sort(key=lambda duck: int(duck["rank"]))
    answered = [duck for duck in ducks if duck["replies"]]
    slowest = max(answered, key=lambda d: (int(d["times_last"]), float(d["latency_mean_us"])), default=None)
    return {
        "retransmissions": sum(duck["probes"] + duck["resends"] for duck in ducks),
        "drops": drops,
        "slowest_duck": slowest["duck"] if slowest else None,
        "ducks": ducks,
        "domains": domains,
    }
