"""Placement moves what is lacking and nothing else, and one duck's trouble does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from duckfleet.fleet import compose
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.healing import heal
from duckfleet.fleet.lab import bitflip
from duckfleet.fleet.placing import Moved, place_all
from duckfleet.fleet.reach import connect
from duckfleet.fleet.switching import Switch
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import OperatorError
from tests.fleet.tiny_checkpoint import make_checkpoint

StartLab = Callable[..., FleetContext]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def wake(fleet: FleetContext) -> None:
    assert all(r.ok for r in Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True))


def test_a_flipped_bit_is_mended_where_it_was_found(start_lab: StartLab, checkpoint: Path) -> None:
    fleet = start_lab(2)
    wake(fleet)
    compose.pull_model(fleet.models_dir, str(checkpoint), None)
    plan = compose.prepare(fleet.models_dir, fleet.chunks_dir, "tiny", tp=2).plan
    site, keys, ducks = fleet.site, fleet.keys, fleet.site.ducks
    assert not any(result.error for result in place_all(site, keys, plan, ducks, fleet.chunks_dir))
    assert heal(site, keys, ducks, fleet.chunks_dir) == []
    assert "is flipped" in bitflip.flip(fleet, ducks[1].name)
    with connect(site, ducks[1], keys) as client:
        deadline_s = time.monotonic() + 60
        while not client.stats()["scrub"]["damaged"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        (digest,) = client.stats()["scrub"]["damaged_chunks"]
        good = (fleet.chunks_dir / digest).read_bytes()
        (fleet.chunks_dir / digest).unlink()
        (healing,) = heal(site, keys, ducks, fleet.chunks_dir)
        assert (healing.duck, healing.mended) == (ducks[1], ())
        assert "duckctl model prepare" in healing.failed[0][1] and "no other duck holds it" in healing.failed[0][1]
        with connect(site, ducks[0], keys) as other:  # a replica
            other.put_chunk(digest, good)
        (healing,) = heal(site, keys, ducks, fleet.chunks_dir)
        assert (healing.duck, healing.mended, healing.failed) == (ducks[1], (digest,), ())
        assert client.stats()["scrub"]["damaged"] == 0 and client.stats()["control"]["chunks_fetched"] == 1
        (fleet.chunks_dir / digest).write_bytes(good)
        assert "is flipped" in bitflip.flip(fleet, ducks[1].name)
        while not client.stats()["scrub"]["damaged"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        (digest,) = client.stats()["scrub"]["damaged_chunks"]
        (healing,) = heal(site, keys, ducks, fleet.chunks_dir)
        assert (healing.duck, healing.mended, healing.failed) == (ducks[1], (digest,), ())
        assert client.stats()["scrub"]["damaged"] == 0
    assert heal(site, keys, ducks, fleet.chunks_dir) == []


def test_placement(start_lab: StartLab, checkpoint: Path) -> None:
    fleet = start_lab(2)
    wake(fleet)
    compose.pull_model(fleet.models_dir, str(checkpoint), None)
    plan = compose.prepare(fleet.models_dir, fleet.chunks_dir, "tiny", tp=2, parts=2).plan
    site, keys, ducks = fleet.site, fleet.keys, fleet.site.ducks
    shares = [[plan.chunks[i] for i in held] for held in plan.holders]
    moved: list[Moved] = []

    def place() -> list[tuple[int, str]]:
        results = place_all(site, keys, plan, ducks, fleet.chunks_dir, moved.append)
        return [(result.moved_bytes, result.error) for result in results]

    whole = [sum(chunk.num_bytes for chunk in share) for share in shares]
    assert place() == [(whole[0], ""), (whole[1], "")]
    for duck, total in zip(ducks, whole, strict=True):  # progress adds up, duck by duck
        assert sum(report.moved_bytes for report in moved if report.duck == duck) == total
    assert place() == [(0, ""), (0, "")]

    # What a duck has lost, and only that, is sent again.
    gone = shares[1][::2]
    with connect(site, ducks[1], keys) as client:
        for chunk in gone:
            client.drop_chunk(chunk.digest)
    assert place() == [(0, ""), (sum(chunk.num_bytes for chunk in gone), "")]

    # A daemon that starts again still has its chunks.
    switch = Switch(site, fleet.known_store, keys, fleet.keys_dir)
    assert switch.switch(ducks, "off")[0].ok
    wake(fleet)
    assert place() == [(0, ""), (0, "")]

    # A chunk that is spoilt on the host is refused by the duck that needs it; the other duck is served all the same.
    spoilt = shares[1][0]
    file = fleet.chunks_dir / spoilt.digest
    good = file.read_bytes()
    for rank in (0, 1):
        with connect(site, ducks[rank], keys) as client:
            client.drop_chunk(shares[rank][0].digest)
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    (first, no_error), (_, error) = place()
    assert (first, no_error) == (shares[0][0].num_bytes, "")
    assert "duck1102" in error and "this host's copy" in error and "`duckctl place` again" in error
    assert not file.exists()  # so that the next preparation makes it anew
    assert compose.prepare(fleet.models_dir, fleet.chunks_dir, "tiny", tp=2, parts=2).plan == plan
    assert file.read_bytes() == good
    with connect(site, ducks[1], keys) as client:
        assert client.have([spoilt.digest]) == [False]

    file.write_bytes(good[:-1])
    with pytest.raises(OperatorError, match="duckctl model prepare"):
        place()
    file.write_bytes(good)
    assert place() == [(0, ""), (spoilt.num_bytes, "")]

    with pytest.raises(OperatorError, match="made for 2 ducks, not 1"):
        place_all(site, keys, plan, ducks[:1], fleet.chunks_dir)
