"""The burst test against a real duckd, through a relay that loses, doubles and cuts as it is told."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duckfleet.fleet.burst import BurstFailed, burst_test, host_counters, rises
from duckfleet.fleet.diagnosis.sources.link.burst import from_json
from tests.runtime.duckd.duck_process import DATA_PORT, DuckProcess, random_address

Fate = Callable[[int, bytes], int]
"""(number of the datagram in this direction, datagram) -> how many times it is passed on."""


def once(_number: int, _datagram: bytes) -> int:
    return 1


@contextmanager
def relay(duck: tuple[str, int], to_duck: Fate = once, from_duck: Fate = once) -> Iterator[tuple[str, int]]:
    """A UDP port that passes datagrams between one client and the duck."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as front,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as back,
    ):
        address = random_address()
        front.bind((address, 0))
        front.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        back.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        back.connect(duck)
        stop = threading.Event()

        def run() -> None:
            client, counts = None, [0, 0]
            while not stop.is_set():
                for ready in select.select([front, back], [], [], 0.05)[0]:
                    if ready is front:
                        datagram, client = front.recvfrom(65536)
                        for _ in range(to_duck(counts[0], datagram)):
                            back.send(datagram)
                        counts[0] += 1
                    else:
                        datagram = back.recv(65536)
                        for _ in range(from_duck(counts[1], datagram)):
                            front.sendto(datagram, client)
                        counts[1] += 1

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield front.getsockname()
        finally:
            stop.set()
            thread.join(10)


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckProcess]:
    with DuckProcess(tmp_path_factory.mktemp("duck")) as running:
        yield running


def counted(duck: DuckProcess) -> tuple[int, int]:
    with duck.control() as control:
        data = control.stats()["data"]
    return data["echoes"] + data["drops"]["rate_limited"], data["echoes"]


def result_of(
    duck: DuckProcess, to_duck: Fate = once, from_duck: Fate = once, num_echoes: int = 200, quiet_s: float = 3.0
) -> dict[str, Any]:
    with relay((duck.address, DATA_PORT), to_duck, from_duck) as address:
        return burst_test(address, lambda: counted(duck), num_echoes=num_echoes, mtu=1500, quiet_s=quiet_s)


def test_a_good_link_loses_nothing(duck: DuckProcess) -> None:
    result = result_of(duck)
    assert result["to_duck"] == result["from_duck"] == {"sent": 200, "received": 200, "duplicates": 0}
    assert result["mtu_passed"] == 1500
    trips = result["rtt_us"]
    assert 0 < trips["p50"] <= trips["p90"] <= trips["p99"] <= trips["max"]
    assert from_json(result).lost == 0


def test_a_loss_is_told_by_its_direction(duck: DuckProcess) -> None:
    there = from_json(result_of(duck, to_duck=lambda number, _: int(number % 5 != 4), quiet_s=0.5))
    assert 0.15 < there.lost_to_duck < 0.25 and there.lost_from_duck == 0
    back = from_json(result_of(duck, from_duck=lambda number, _: int(number % 5 != 4), quiet_s=0.5))
    assert 0.15 < back.lost_from_duck < 0.25 and back.lost_to_duck == 0
    assert back.mtu_passed == 1500  # a frame that is lost at times still passes


def test_frames_that_come_twice_are_counted(duck: DuckProcess) -> None:
    result = result_of(duck, from_duck=lambda number, _: 1 + (number >= 20 and number % 10 == 0))
    assert 10 <= result["from_duck"]["duplicates"] <= 30
    assert from_json(result).lost == 0


def test_large_frames_that_do_not_pass(duck: DuckProcess) -> None:
    result = result_of(duck, to_duck=lambda _, datagram: int(len(datagram) + 28 <= 1400), quiet_s=0.1)
    assert result["mtu_passed"] == 1280
    assert result["to_duck"]["received"] == 200  # and the burst goes on with what fits


def test_silence_is_a_failure_and_no_loss(duck: DuckProcess) -> None:
    with pytest.raises(BurstFailed, match="no answer"):
        result_of(duck, to_duck=lambda *_: 0, quiet_s=0.1)


def test_a_port_where_nobody_listens_is_a_failure(duck: DuckProcess) -> None:
    with pytest.raises(BurstFailed):
        burst_test((duck.address, 9), lambda: counted(duck), num_echoes=10, mtu=1500)


def test_rubbish_and_strangers_echoes_are_no_answers(duck: DuckProcess) -> None:
    with relay((duck.address, DATA_PORT)) as address:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for junk in (b"", b"x", b"HTTP/1.1", bytes(80), bytes(2000)):
                stranger.sendto(junk, address)
        result = burst_test(address, lambda: counted(duck), num_echoes=50, mtu=1500)
    assert result["from_duck"]["received"] == 50


def test_counters_of_the_hosts_own_port() -> None:
    assert set(host_counters("lo")) >= {"rx_errors", "rx_crc_errors", "tx_dropped"}
    assert host_counters("none-such") == {}
    assert rises({"a": 1, "b": 5, "gone": 1}, {"a": 4, "b": 2}) == {"a": 3, "b": 2}
