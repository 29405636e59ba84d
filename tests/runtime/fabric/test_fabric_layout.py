"""Fragments from MTUs, vectors from rosters and plans."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import Chunk, Section, ShardPlan
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.fabric.layout import Vector, duties, fragment_bytes, lay_out
from duckfleet.runtime.fabric.takeover import PlanParts, Shares
from duckfleet.runtime.wire import FRAGMENT_UNIT_BYTES, DataHeader


def roster(domain_of_rank: str, *, port: int = 9000) -> Roster:
    entries = tuple(
        RosterEntry(
            rank=rank,
            duck=f"{domain}-{rank}",
            address=f"127.23.{domain}.{101 + rank}",
            domain=domain,
            control_port=7000,
            data_port=port + int(domain),
            ram_bytes=1,
            read_bandwidth_bytes_per_s=1.0,
            num_threads=1,
            evidence_at_s=0.0,
        )
        for rank, domain in enumerate(domain_of_rank)
    )
    domains = tuple(RosterDomain(str(d), f"127.23.{d}.1", "127.255.255.255", 1500) for d in range(1, 5))
    return Roster(generation=1, made_at_s=0.0, domains=domains, entries=entries)


def plan(tp: int, layers_of_slice: dict[int, list[int]], num_layers: int = 2) -> ShardPlan:
    chunks = tuple(
        Chunk(layer, slice_, 0, (Section(0, 16 * slice_, 16),), 1)
        for layer, slice_ in sorted((layer, s) for s, layers in layers_of_slice.items() for layer in layers)
    )
    holders = tuple(tuple(i for i, c in enumerate(chunks) if c.slice == rank) for rank in range(tp))
    return ShardPlan(1, "m", "00" * 32, "f32", 64, num_layers, tp, 1, chunks, holders)


@given(st.integers(0, 70_000))
def test_fragment_fills_the_mtu_in_whole_units(mtu: int) -> None:
    header = 20 + 8 + DataHeader.num_bytes()
    if min(mtu, 65507 + 28) - header < FRAGMENT_UNIT_BYTES:
        with pytest.raises(OperatorError, match=str(mtu)):
            fragment_bytes(mtu)
        return
    payload = fragment_bytes(mtu)
    assert payload % FRAGMENT_UNIT_BYTES == 0
    assert header + payload <= mtu
    assert header + payload + FRAGMENT_UNIT_BYTES > min(mtu, 65507 + 28)


def test_fragments_of_ethernet_and_loopback() -> None:
    assert fragment_bytes(1500) == 1344
    assert fragment_bytes(65536) == 65408


def test_vectors_follow_domains_and_layers() -> None:
    plan_ = plan(4, {0: [0, 1], 1: [0], 2: [1], 3: []})
    layouts = lay_out(roster("1212"), plan_)
    assert [layout.domain.name for layout in layouts] == ["1", "2"]
    first, second = duties(layouts, PlanParts.of(plan_), Shares(frozenset(range(4)), {}, ()))
    assert first.vectors == (Vector(duck=0, slice=0), Vector(duck=1, slice=2))
    assert first.vectors_of_layer == ((0,), (0, 1))
    assert second.vectors == (Vector(duck=0, slice=1),)
    assert second.vectors_of_layer == ((0,), ())
    assert [layout.data_port for layout in layouts] == [9001, 9002]


def test_roster_and_plan_of_different_size_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"3 ducks.*cut for 4"):
        lay_out(roster("111"), plan(4, {}))


def test_unknown_domain_is_refused() -> None:
    with pytest.raises(OperatorError, match="9-0"):
        lay_out(roster("9"), plan(1, {0: [0]}))


def test_ports_of_a_domain_must_agree() -> None:
    r = roster("11")
    odd = dataclasses.replace(r, entries=(r.entries[0], dataclasses.replace(r.entries[1], data_port=1)))
    with pytest.raises(OperatorError, match="different data ports"):
        lay_out(odd, plan(2, {0: [0], 1: [0]}))


def test_ranks_out_of_order_are_refused() -> None:
    r = roster("11")
    with pytest.raises(OperatorError, match="with rank 1"):
        lay_out(dataclasses.replace(r, entries=r.entries[::-1]), plan(2, {0: [0], 1: [0]}))
