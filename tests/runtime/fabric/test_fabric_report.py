"""Errors and statistics in words: which duck, where, what was last heard."""

from __future__ import annotations

import errno
from typing import Any

from duckfleet.runtime.fabric.layout import lay_out
from duckfleet.runtime.fabric.report import MissingVector, duck_lost, traffic
from tests.runtime.fabric.test_fabric_layout import plan, roster

ENTRIES = {entry.rank: entry for entry in roster("112").entries}
FINE = dict.fromkeys(ENTRIES, 0)


def lost(*missing: MissingVector, errnos: dict[int, int] = FINE) -> Any:
    return duck_lost(7, 2_500_000, missing, ENTRIES, errnos)


def test_each_missing_duck_is_named_with_what_was_heard() -> None:
    error = lost(
        MissingVector(0, 0, 255, 0, 0, 1000),
        MissingVector(1, 1, 255, 3, 400, 1000),
        MissingVector(2, 2, 255, 2, 0, 1000),
    )
    assert error.ducks == ("1-0", "1-1", "2-2")
    assert str(error) == (
        "layer 7: no answer after 2.500 s from 3 of 3 ducks: 1-0 (127.23.1.101, rank 0): nothing heard, "
        "1-1 (127.23.1.102, rank 1): 400 of 1000 bytes of its reply came, "
        "2-2 (127.23.2.103, rank 2): it said it was computing"
    )


def test_a_duck_that_owes_several_vectors_is_named_once() -> None:
    assert lost(MissingVector(1, 1, 255, 0, 0, 8), MissingVector(1, 0, 2, 0, 0, 8)).ducks == ("1-1",)


def test_a_host_that_could_not_send_says_so() -> None:
    error = lost(MissingVector(2, 2, 255, 0, 0, 8), errnos=FINE | {2: errno.ENETUNREACH})
    assert "Network is unreachable" in str(error)


def test_traffic_sums_drops_and_finds_the_slowest() -> None:
    layouts = lay_out(roster("121"), plan(3, {0: [0], 1: [0], 2: [0]}))

    def duck(times_last: int, replies: int = 10) -> dict[str, int]:
        counters = {"replies": replies, "latency_sum_us": 500, "latency_last_us": 9, "latency_max_us": 90}
        return counters | {"times_last": times_last, "probes": 1, "resends": 2, "resent_bytes": 64}

    native = [
        {"drops": {"bad_tag": 1, "replayed": 2}, "requests": 10, "ducks": [duck(3), duck(7)]},
        {"drops": {"bad_tag": 4, "replayed": 0}, "requests": 10, "ducks": [duck(9, replies=0)]},
    ]
    table = traffic(layouts, native)
    assert table["drops"] == {"bad_tag": 5, "replayed": 2}
    assert table["retransmissions"] == 9
    assert [d["duck"] for d in table["ducks"]] == ["1-0", "2-1", "1-2"]
    assert table["slowest_duck"] == "1-2"  # 2-1 never answered: there is nothing to compare
    assert table["ducks"][0]["latency_mean_us"] == 50
    assert [d["domain"] for d in table["domains"]] == ["1", "2"]
