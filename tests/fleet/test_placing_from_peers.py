"""Placement from duck to duck, with real daemons: what comes from whom, and what happens when a duck does not give."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import pytest

from duckfleet.fleet import compose
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.peers import MAX_FAILURES, Landings, fetch_all
from duckfleet.fleet.placing import Moved, PlacementResult, place_all
from duckfleet.fleet.reach import connect
from duckfleet.fleet.switching import Switch
from duckfleet.fleet.transfers import Transfer
from duckfleet.fleet.wake import Waker
from duckfleet.fp9_kernels import chunk_digest
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.sitefile import parse_site
from duckfleet.runtime.wire import FleetKeys
from tests.fleet.tiny_checkpoint import make_checkpoint
from tests.runtime.duckd.bad_wire import BadWire, cuts_at, straight
from tests.runtime.duckd.duck_process import CONTROL_PORT, DuckProcess
from tests.runtime.duckd.small_model import SmallModel

StartLab = Callable[..., FleetContext]
ROOM = 1 << 30
NOBODY = "127.99.99.99"


class Placed:
    """Three ducks and a plan with a whole second copy."""

    def __init__(self, fleet: FleetContext, checkpoint: Path) -> None:
        self.fleet, self.ducks = fleet, fleet.site.ducks
        assert all(r.ok for r in Waker(fleet.site, fleet.known_store, fleet.keys).wake(self.ducks, wait=True))
        compose.pull_model(fleet.models_dir, str(checkpoint), None)
        rooms = {duck.address: ROOM for duck in self.ducks}
        prepared = compose.prepare(
            fleet.models_dir, fleet.chunks_dir, "tiny", tp=3, parts=2, room_bytes=rooms, replicas=1.0
        )
        self.plan: ShardPlan = prepared.plan

    def place(self) -> list[PlacementResult]:
        fleet = self.fleet
        everywhere = frozenset(domain.name for domain in fleet.site.domains)
        return place_all(
            fleet.site, fleet.keys, self.plan, self.ducks, fleet.chunks_dir, with_peers=lambda _lacking: everywhere
        )

    @property
    def once_bytes(self) -> int:
        return sum(chunk.num_bytes for chunk in self.plan.chunks)

    def drop(self, place: int) -> None:
        with connect(self.fleet.site, self.ducks[place], self.fleet.keys) as client:
            client.keep_only([])

    def has_all(self, place: int) -> bool:
        wanted = [self.plan.chunks[i].digest for i in self.plan.holders[place]]
        with connect(self.fleet.site, self.ducks[place], self.fleet.keys) as client:
            return all(client.have(wanted))


@pytest.fixture
def placed(start_lab: StartLab, tmp_path: Path) -> Placed:
    return Placed(start_lab(3), make_checkpoint(tmp_path / "tiny"))


def test_each_chunk_leaves_the_host_once(placed: Placed) -> None:
    results = placed.place()
    assert [result.error for result in results] == [""] * 3
    assert sum(result.host_bytes for result in results) == placed.once_bytes
    assert sum(result.peer_bytes for result in results) == placed.once_bytes  # the second copy
    assert all(placed.has_all(place) for place in range(3))
    assert [result.moved_bytes for result in placed.place()] == [0, 0, 0]

    # A duck that lost everything gets what its neighbours hold from them, here all of it.
    placed.drop(1)
    results = placed.place()
    assert [(r.host_bytes, r.error) for r in results] == [(0, "")] * 3
    assert results[1].peer_bytes == results[1].total_bytes and placed.has_all(1)

    # So it does when this host's store is gone, whoever was to send.
    placed.drop(2)
    for chunk in placed.plan.chunks:
        (placed.fleet.chunks_dir / chunk.digest).unlink()
    fleet = placed.fleet
    results = place_all(fleet.site, fleet.keys, placed.plan, placed.ducks, fleet.chunks_dir)
    assert [result.error for result in results] == [""] * 3
    assert results[2].peer_bytes == results[2].total_bytes and placed.has_all(2)


MODEL = SmallModel(format="f32", hidden=1024)
CHUNK = MODEL.chunk(1, 0)
DIGEST = chunk_digest(CHUNK)


@dataclass
class Two:
    """A duck that holds `CHUNK` and one that lacks it, the first as the site file knows it; both are to hold it."""

    holder: DuckProcess
    taker: DuckProcess
    chunks_dir: Path

    def place(self, holder_address: str = "") -> list[PlacementResult]:
        addresses = (holder_address or self.holder.address, self.taker.address)
        ducks = "".join(
            f'[[ducks]]\nmac = "00:e0:4c:00:00:0{i}"\naddress = "{address}"\nname = "{name}"\n'
            for i, (address, name) in enumerate(zip(addresses, ("ann", "bob"), strict=True))
        )
        site = parse_site(
            f'[fleet]\nname = "x"\ncontrol_port = {CONTROL_PORT}\n[[domains]]\nname = "d"\ninterface = "lo"\n'
            f'host_address = "127.22.0.1"\nprefix_len = 16\nnodes = "{",".join(addresses)}"\n{ducks}',
            Path("site.toml"),
        )
        (self.chunks_dir / DIGEST).write_bytes(CHUNK)
        chunks = (Chunk(1, 1, 0, (), len(CHUNK), DIGEST),)
        plan = ShardPlan(1, "m", "ab" * 32, "f32", MODEL.hidden, 3, 2, 1, chunks, ((0,), (0,)))
        by_name = {duck.name: duck for duck in site.ducks}
        return place_all(
            site,
            self.holder.keys,
            plan,
            [by_name["ann"], by_name["bob"]],
            self.chunks_dir,
            with_peers=lambda _lacking: frozenset("d"),
        )

    def came_from_the_host(self, results: list[PlacementResult], reason: str) -> None:
        assert [result.error for result in results] == ["", ""]
        assert (results[1].host_bytes, results[1].peer_bytes) == (len(CHUNK), 0)
        (detour,) = results[1].detours
        assert reason in detour and "ann" in detour and DIGEST[:12] in detour
        with self.taker.control() as control:
            assert control.have([DIGEST]) == [True]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    keys = FleetKeys.generate()
    stored = ("--store", str(tmp_path / "store"), "--scrub-mib-per-s", "0")
    (tmp_path / "chunks").mkdir()
    with DuckProcess(tmp_path / "a", keys, stored) as holder, DuckProcess(tmp_path / "b", keys) as taker:
        with holder.control() as control:
            control.put_chunk(DIGEST, CHUNK)
        yield Two(holder, taker, tmp_path / "chunks")


def test_a_duck_takes_what_another_holds(two: Two) -> None:
    results = two.place()
    assert [(r.host_bytes, r.peer_bytes, r.error, r.detours) for r in results] == [
        (0, 0, "", ()),
        (0, len(CHUNK), "", ()),
    ]


def test_a_bit_that_is_flipped_at_the_giver(two: Two) -> None:
    (file,) = Path(two.holder.options[1]).glob("*.chunk")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    two.came_from_the_host(two.place(), "is damaged here")
    results = two.place()  # now that it is known, the giver is given it, by the other
    assert [(r.host_bytes, r.peer_bytes, r.error) for r in results] == [(0, len(CHUNK), ""), (0, 0, "")]


def test_a_giver_that_is_killed_in_the_middle(two: Two) -> None:
    def kill_at_half(passed: int, piece: bytes) -> bytes | None:
        if passed + len(piece) <= len(CHUNK) // 2:
            return piece
        os.kill(two.holder.pid, signal.SIGKILL)
        return None

    with BadWire(two.holder.address, [straight], kill_at_half, port=CONTROL_PORT) as wire:
        two.came_from_the_host(two.place(wire.address), "it closed the connection")
    two.holder.wait_for_exit()


def test_a_giver_that_is_not_there(two: Two) -> None:
    """Whoever connects after it was asked what it holds is cut off."""
    with BadWire(two.holder.address, [straight, cuts_at(0)], port=CONTROL_PORT) as wire:
        two.came_from_the_host(two.place(wire.address), "could not be told to give")


def test_a_giver_that_gives_nothing_is_asked_a_few_times_and_no_more(placed: Placed) -> None:
    """Not once a chunk, each time until it was silent for long enough. What is left out comes from this host."""
    fleet = placed.fleet
    assert [result.error for result in placed.place()] == [""] * 3
    taker, giver = placed.ducks[1], placed.ducks[0]
    wanted = [placed.plan.chunks[i] for i in placed.plan.holders[1]]
    assert len(wanted) > MAX_FAILURES
    placed.drop(1)
    gone = replace(giver, address=NOBODY)
    transfers = [Transfer(chunk.digest, chunk.num_bytes, 0) for chunk in wanted]
    landings = Landings([{chunk.digest for chunk in wanted}, set()])
    failed = fetch_all(fleet.site, fleet.keys, taker, transfers, {0: gone}, landings, lambda _transfer: None)
    assert [transfer for transfer, _ in failed] == transfers
    reasons = [reason for _, reason in failed]
    assert all("could not be told to give" in reason for reason in reasons[:MAX_FAILURES])
    assert all("not asked again" in reason and f"probe {giver.name}" in reason for reason in reasons[MAX_FAILURES:])


def test_ctrl_c_ends_a_placement_in_its_middle(placed: Placed) -> None:
    """Not when everything has been moved; what came stays, and the next placement goes on from there."""

    def interrupt(moved: Moved) -> None:
        if not moved.moved_bytes:
            return
        if first.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)  # to the main thread, which waits for all ducks
        assert heard.wait(60)
        time.sleep(0.5)  # for each piece after it: the main thread has its turn before all is over

    def hear(_number: int, _frame: FrameType | None) -> None:
        heard.set()
        raise KeyboardInterrupt

    heard, first = threading.Event(), threading.Lock()
    before = signal.signal(signal.SIGINT, hear)
    fleet = placed.fleet
    everywhere = frozenset(domain.name for domain in fleet.site.domains)
    try:
        with pytest.raises(KeyboardInterrupt):
            place_all(
                fleet.site,
                fleet.keys,
                placed.plan,
                placed.ducks,
                fleet.chunks_dir,
                interrupt,
                with_peers=lambda _lacking: everywhere,
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert not all(placed.has_all(place) for place in range(3))
    assert [result.error for result in placed.place()] == [""] * 3


def test_a_duck_that_dies_stops_only_itself(placed: Placed) -> None:
    fleet = placed.fleet
    assert Switch(fleet.site, fleet.known_store, fleet.keys, fleet.keys_dir).switch([placed.ducks[2]], "off")[0].ok
    results = placed.place()
    assert [bool(result.error) for result in results] == [False, False, True]
    assert placed.ducks[2].name in results[2].error
    assert placed.has_all(0) and placed.has_all(1)
