"""Chunks on their way through a wire that flips bits, cuts and stalls: never kept wrong, said, and sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duckfleet.fleet.placing import place_all
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.sitefile import parse_site
from duckfleet.runtime.wire import FleetKeys
from tests.runtime.duckd.bad_wire import BadWire, cuts_at, flips_at, straight
from tests.runtime.duckd.conftest import serve
from tests.runtime.duckd.duck_process import DuckProcess
from tests.runtime.duckd.small_model import SmallModel

MODEL = SmallModel(format="f32", hidden=1024)
CHUNK = MODEL.chunk(1, 0)


@pytest.fixture(params=["keyed", "plain"])
def duck(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DuckProcess]:
    keys = FleetKeys.generate() if request.param == "keyed" else None
    with DuckProcess(tmp_path / "duck", keys, ("--store", str(tmp_path / "store"))) as running:
        yield running


def place(duck: DuckProcess, wire: BadWire, folder: Path) -> tuple[str, bool]:
    """What is said of placing one chunk through the wire, and whether the duck has it then."""
    from duckfleet.fp9_kernels import chunk_digest

    digest = chunk_digest(CHUNK)
    (folder / digest).write_bytes(CHUNK)
    host = wire.address.rpartition(".")[0]
    site = parse_site(
        f'[fleet]\nname = "x"\ncontrol_port = {wire.port}\n[[domains]]\nname = "d"\ninterface = "lo"\n'
        f'host_address = "{host}.255"\nprefix_len = 16\nnodes = "{wire.address}"\n'
        f'[[ducks]]\nmac = "00:e0:4c:00:00:01"\naddress = "{wire.address}"\nname = "ann"\n',
        Path("site.toml"),
    )
    chunks = (Chunk(1, 1, 0, (), len(CHUNK), digest),)
    plan = ShardPlan(1, "m", "ab" * 32, "f32", MODEL.hidden, 3, 1, 1, chunks, ((0,),))
    (result,) = place_all(site, duck.keys, plan, site.ducks, folder)
    with duck.control() as control:
        return result.error, control.have([digest]) == [True]


@pytest.mark.parametrize("offset", [2, 30, 5_000, len(CHUNK) // 2, len(CHUNK) - 9_000])
def test_a_bit_flipped_once(duck: DuckProcess, tmp_path: Path, offset: int) -> None:
    with BadWire(duck.address, [flips_at(offset), straight]) as wire:
        error, held = place(duck, wire, tmp_path)
        if held:  # plain: the digest found it, and the chunk went again over the same connection
            assert duck.keys is None and error == ""
        else:
            assert "ann" in error
            assert place(duck, wire, tmp_path) == ("", True)
    served = serve(duck)
    served.assert_good()
    served.host.close()


def test_a_wire_that_flips_a_bit_of_every_chunk(duck: DuckProcess, tmp_path: Path) -> None:
    def bend(_passed: int, piece: bytes) -> bytes:
        return piece[:-1] + bytes([piece[-1] ^ 1]) if len(piece) > 20_000 else piece

    with BadWire(duck.address, [bend]) as wire:
        error, held = place(duck, wire, tmp_path)
    assert "ann" in error and not held
    with duck.control() as control:
        counted = control.stats()["control"]
    # Where TCP cuts its pieces is chance: a flipped bit may also be one of a frame's header.
    assert counted["auth_failed"] if duck.keys else 1 <= counted["chunks_refused"] + counted["malformed"] <= 3
    assert not list((tmp_path / "store").glob("*.partial"))


@pytest.mark.parametrize("offset", [1, 120, 5_000, len(CHUNK) // 2])
def test_a_connection_that_is_cut(duck: DuckProcess, tmp_path: Path, offset: int) -> None:
    with BadWire(duck.address, [cuts_at(offset), straight]) as wire:
        error, held = place(duck, wire, tmp_path)
        assert "ann" in error and not held
        assert place(duck, wire, tmp_path) == ("", True)
