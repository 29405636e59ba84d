"""UdpFabric against real duckd processes on loopback: the bits of LocalFabric, and errors that name the duck."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duckfleet.inventory.errors import InternalError, MachineError, OperatorError
from duckfleet.runtime.control import AuthRequired, ChunkMissing, StaleGeneration
from duckfleet.runtime.errors import DuckLost, FabricClosed
from duckfleet.runtime.fabric import Fabric, LocalFabric, UdpFabric
from duckfleet.runtime.wire import FleetKeys, TagAlgorithm
from tests.runtime.fabric.cut_model import DENSE, MOE, WIDE, CutModel
from tests.runtime.fabric.duck_processes import DuckFlock

DEADLINE_S = 20.0  # of forwards that must succeed: a loaded machine is no failure


@pytest.fixture(scope="module")
def flock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckFlock]:
    with DuckFlock(tmp_path_factory.mktemp("flock"), [3, 2]) as ducks:
        yield ducks


def open_udp(flock: DuckFlock, model: CutModel, ranks: list[int] | None = None, **options) -> UdpFabric:
    """A session on the ducks with these indices, weights placed."""
    roster = flock.roster(ranks if ranks is not None else list(range(model.plan.tp)))
    flock.place(roster, model.plan, model.chunks)
    return UdpFabric(roster, model.plan, flock.keys, **{"deadline_s": DEADLINE_S, "control_timeout_s": 20.0} | options)


def forward(fabric: Fabric, model: CutModel, layer: int, num_tokens: int, seed: int = 1, lane: int = 0) -> np.ndarray:
    x, experts, weights = model.inputs(layer, num_tokens, seed)
    out = np.full_like(x, np.nan)
    timing = fabric.wait(fabric.submit(layer, x, experts, weights, lane), out)
    assert timing.wait_us >= 0
    return out


def assert_equal_bits(udp: Fabric, local: Fabric, model: CutModel, num_tokens: int, seed: int = 1) -> None:
    for layer in range(model.shape.num_layers):
        got = forward(udp, model, layer, num_tokens, seed)
        expected = forward(local, model, layer, num_tokens, seed)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32)), f"layer {layer}"


# --- right answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [DENSE, MOE], ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("tp", "parts", "shares"),
    [(1, 1, None), (2, 3, None), (3, 1, None), (5, 2, None), (3, 1, (3.0, 1.0, 0.5))],
    ids=["tp1", "tp2", "tp3", "tp5", "uneven"],
)
def test_bits_of_local_and_from_run_to_run(flock: DuckFlock, shape, tp: int, parts: int, shares) -> None:
    model = CutModel(shape, tp, parts=parts, weights=shares)
    local = LocalFabric(model.plan, model.chunk_bytes)
    for _run in range(2):
        udp = open_udp(flock, model)
        for num_tokens in (1, 2, 7):
            assert_equal_bits(udp, local, model, num_tokens)
        udp.close()


@pytest.mark.parametrize("format", ["bf16", "e4m3", "fp9"])
def test_every_format(flock: DuckFlock, format: str) -> None:
    model = CutModel(MOE, 2, format=format)
    udp = open_udp(flock, model)
    assert_equal_bits(udp, LocalFabric(model.plan, model.chunk_bytes), model, 3)
    udp.close()


@pytest.mark.parametrize("max_tokens", [128, 7])
def test_batches_longer_than_a_request(flock: DuckFlock, max_tokens: int) -> None:
    model = CutModel(MOE, 5)
    local = LocalFabric(model.plan, model.chunk_bytes)
    udp = open_udp(flock, model, max_tokens=max_tokens)
    for num_tokens in (1, 127, 128, 129, 300):
        assert_equal_bits(udp, local, model, num_tokens)
    udp.close()


def test_small_fragments(tmp_path: Path) -> None:
    with DuckFlock(tmp_path, [2], mtu=1500) as ducks:
        model = CutModel(MOE, 2)
        udp = open_udp(ducks, model)
        assert_equal_bits(udp, LocalFabric(model.plan, model.chunk_bytes), model, 40)
        domain = udp.stats()["domains"][0]
        assert domain["received_bytes"] / domain["received_datagrams"] < 1500
        udp.close()


def test_two_lanes(flock: DuckFlock) -> None:
    model = CutModel(MOE, 3)
    local = LocalFabric(model.plan, model.chunk_bytes)
    udp = open_udp(flock, model)
    for turn in range(20):
        inputs = [model.inputs(lane, 2 + turn, seed=turn) for lane in range(2)]
        tickets = [udp.submit(lane, *inputs[lane], lane=lane) for lane in range(2)]
        for lane in (1, 0) if turn % 2 else (0, 1):
            out = np.empty_like(inputs[lane][0])
            udp.wait(tickets[lane], out)
            assert np.array_equal(out, forward(local, model, lane, 2 + turn, seed=turn))
    udp.close()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounded_activations(flock: DuckFlock, dtype: str) -> None:
    model = CutModel(DENSE, 2)
    local = LocalFabric(model.plan, model.chunk_bytes)
    udp = open_udp(flock, model, wire_dtype=dtype)
    x, *_ = model.inputs(0, 5, seed=3)
    out = np.empty_like(x)
    udp.wait(udp.submit(0, x), out)
    if dtype == "f16":
        rounded = x.astype(np.float16).astype(np.float32)
    else:
        bits = x.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    expected = np.empty_like(x)
    local.wait(local.submit(0, rounded), expected)
    assert np.array_equal(out, expected)
    udp.close()


def test_busy_polling_gives_the_same(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 5)
    udp = open_udp(flock, model, spin_us=300)
    assert_equal_bits(udp, LocalFabric(model.plan, model.chunk_bytes), model, 2)
    udp.close()


def test_32_ducks_on_four_domains(tmp_path: Path) -> None:
    with DuckFlock(tmp_path, [8, 8, 8, 8]) as ducks:
        model = CutModel(WIDE, 32)
        local = LocalFabric(model.plan, model.chunk_bytes)
        udp = open_udp(ducks, model)
        for num_tokens in (1, 3, 150):
            assert_equal_bits(udp, local, model, num_tokens)
        stats = udp.stats()
        assert [d["domain"] for d in stats["domains"]] == ["d1", "d2", "d3", "d4"]
        assert all(d["replies"] for d in stats["ducks"])
        udp.close()


def test_ranks_that_hold_nothing_of_a_layer(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 5)
    holders = [{c.slice for c in model.plan.chunks if c.layer == layer} for layer in range(3)]
    assert [len(h) for h in holders] == [5, 5, 1]
    udp = open_udp(flock, model)
    assert_equal_bits(udp, LocalFabric(model.plan, model.chunk_bytes), model, 3)
    udp.close()


# --- session set-up ---------------------------------------------------------------------------------------------


def test_missing_weights_name_the_duck_and_the_next_step(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 2, seed=77)
    with pytest.raises(ChunkMissing, match=r"d1-01 \(127\.23\.1\.101\) lacks \d+ of \d+ chunks.*duckctl place"):
        UdpFabric(flock.roster([0, 1]), model.plan, flock.keys, deadline_s=DEADLINE_S)


def test_an_older_plan_is_refused(tmp_path: Path) -> None:
    with DuckFlock(tmp_path, [1]) as ducks:
        open_udp(ducks, CutModel(DENSE, 1, generation=5)).close()
        with pytest.raises(StaleGeneration, match=r"d1-01.*generation 5"):
            open_udp(ducks, CutModel(DENSE, 1, generation=4))


def test_keys_are_needed_and_must_be_right(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 1)
    roster = flock.roster([0])
    flock.place(roster, model.plan, model.chunks)
    with pytest.raises(OperatorError, match="duckctl init"):
        UdpFabric(roster, model.plan, None, deadline_s=DEADLINE_S)
    with pytest.raises(AuthRequired, match="d1-01"):
        UdpFabric(roster, model.plan, None, deadline_s=DEADLINE_S, auth=False)
    with pytest.raises(MachineError, match="d1-01"):
        UdpFabric(roster, model.plan, FleetKeys.generate(), deadline_s=DEADLINE_S)


def test_without_authentication_only_when_asked_for(tmp_path: Path) -> None:
    with DuckFlock(tmp_path, [2], auth=False) as ducks:
        model = CutModel(MOE, 2)
        udp = open_udp(ducks, model, auth=False)
        assert udp.tag_algorithm is TagAlgorithm.NONE
        assert_equal_bits(udp, LocalFabric(model.plan, model.chunk_bytes), model, 3)
        udp.close()


def test_tags_are_on_by_default(flock: DuckFlock) -> None:
    udp = open_udp(flock, CutModel(DENSE, 1))
    assert udp.tag_algorithm is not TagAlgorithm.NONE
    udp.close()


def test_a_duck_that_is_off_is_named(flock: DuckFlock, tmp_path: Path) -> None:
    absent = DuckFlock(tmp_path, [1])  # never started
    model = CutModel(DENSE, 1)
    with pytest.raises(DuckLost, match="d1-01") as caught:
        UdpFabric(absent.roster(), model.plan, absent.keys, deadline_s=DEADLINE_S)
    assert caught.value.ducks == ("d1-01",)
    assert "duckctl wake d1-01 --wait" in str(caught.value)
    assert "duckctl status" in str(caught.value)


def test_an_unknown_transport_or_dtype_is_refused(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 1)
    with pytest.raises(OperatorError, match=r"'dpdk'.*udp"):
        UdpFabric(flock.roster([0]), model.plan, flock.keys, deadline_s=DEADLINE_S, transport="dpdk")
    with pytest.raises(OperatorError, match="int8"):
        UdpFabric(flock.roster([0]), model.plan, flock.keys, deadline_s=DEADLINE_S, wire_dtype="int8")


# --- things that go wrong ---------------------------------------------------------------------------------------


def test_a_duck_killed_during_a_request_is_named_and_replaced(tmp_path: Path) -> None:
    with DuckFlock(tmp_path, [3, 1]) as ducks:
        model = CutModel(MOE, 3)
        local = LocalFabric(model.plan, model.chunk_bytes)
        udp = open_udp(ducks, model, [0, 1, 3], deadline_s=3.0)
        assert_equal_bits(udp, local, model, 2)
        x, experts, weights = model.inputs(1, 2, seed=1)
        ducks.ducks[1].suspend()  # so that it has the request and no answer
        ticket = udp.submit(1, x, experts, weights)
        ducks.ducks[1].kill()
        with pytest.raises(DuckLost, match=r"layer 1: .*d1-02 \(127\.23\.1\.102, rank 1\)") as caught:
            udp.wait(ticket, np.empty_like(x))
        assert caught.value.ducks == ("d1-02",)
        udp.close()
        replaced = open_udp(ducks, model, [0, 2, 3])
        assert_equal_bits(replaced, local, model, 2)
        replaced.close()


def test_a_stopped_duck_is_named_and_may_come_back(tmp_path: Path) -> None:
    with DuckFlock(tmp_path, [2]) as ducks:
        model = CutModel(DENSE, 2)
        local = LocalFabric(model.plan, model.chunk_bytes)
        udp = open_udp(ducks, model, deadline_s=3.0)
        assert_equal_bits(udp, local, model, 1)
        ducks.ducks[0].suspend()
        with pytest.raises(DuckLost, match=r"d1-01.*nothing heard"):
            forward(udp, model, 0, 1)
        ducks.ducks[0].resume()
        # It now answers what it slept through as well: counted, and no part of a sum.
        for seed in range(5):
            assert_equal_bits(udp, local, model, 3, seed=seed)
        udp.close()


def test_junk_from_anywhere_is_counted_and_changes_nothing(flock: DuckFlock) -> None:
    model = CutModel(MOE, 2)
    local = LocalFabric(model.plan, model.chunk_bytes)
    udp = open_udp(flock, model)
    port = udp._native.ports()[0]
    random = np.random.default_rng(5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.23.1.250", 0))
        for i in range(300):
            stranger.sendto(random.bytes(int(random.integers(0, 3000))), ("127.23.1.1", port))
            if i % 50 == 0:
                assert_equal_bits(udp, local, model, 2)
    assert_equal_bits(udp, local, model, 2)
    drops = udp.stats()["drops"]
    assert drops["too_short"] + drops["bad_magic"] + drops["too_long"] == 300
    udp.close()


def test_a_session_ends_the_one_before(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 2)
    first = open_udp(flock, model, deadline_s=1.0)
    second = open_udp(flock, model)
    with pytest.raises(DuckLost):
        forward(first, model, 0, 1)
    assert_equal_bits(second, LocalFabric(model.plan, model.chunk_bytes), model, 1)
    first.close()
    second.close()


# --- callers ----------------------------------------------------------------------------------------------------


def test_misuse(flock: DuckFlock) -> None:
    model = CutModel(MOE, 1)
    udp = open_udp(flock, model)
    x, experts, weights = model.inputs(1, 2, seed=1)
    out = np.empty_like(x)
    with pytest.raises(ValueError, match="columns"):
        udp.submit(1, x[:, :3].copy(), experts, weights)
    with pytest.raises(ValueError, match="together"):
        udp.submit(1, x, experts, None)
    with pytest.raises(ValueError, match="ascend"):
        udp.submit(1, x, experts[:, ::-1].copy(), weights)
    with pytest.raises(ValueError, match="layer 9"):
        udp.submit(9, x)
    with pytest.raises(TypeError):
        udp.submit(1, x.astype(np.float64), experts, weights)
    ticket = udp.submit(1, x, experts, weights)
    with pytest.raises(InternalError, match="lane 0"):
        udp.submit(1, x, experts, weights)
    with pytest.raises(ValueError, match="out"):
        udp.wait(ticket, np.empty((1, MOE.hidden), np.float32))
    udp.wait(ticket, out)
    with pytest.raises(ValueError, match="already"):
        udp.wait(ticket, out)
    dropped = udp.submit(1, x, experts, weights)
    del dropped
    gc.collect()
    udp.wait(udp.submit(1, x, experts, weights), out)
    udp.close()
    udp.close()
    with pytest.raises(FabricClosed):
        udp.submit(1, x, experts, weights)


def test_stats_tell_who_was_slow_and_where_the_time_went(flock: DuckFlock) -> None:
    model = CutModel(DENSE, 3)
    udp = open_udp(flock, model)
    for seed in range(4):
        forward(udp, model, 0, 1, seed=seed)
    stats = udp.stats()
    assert stats["forwards"] == 4
    assert set(stats["mean_us"]) == {"prepare", "send", "wait", "fetch"}
    assert [d["rank"] for d in stats["ducks"]] == [0, 1, 2]
    assert all(d["replies"] == 4 and d["latency_max_us"] >= d["latency_last_us"] for d in stats["ducks"])
    assert stats["slowest_duck"] in {"d1-01", "d1-02", "d1-03"}
    assert stats["tag_algorithm"] in {"aes256_gmac", "chacha20_poly1305"}
    udp.close()
