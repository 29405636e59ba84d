"""A short soak of the host, and what soaks found; `python -m tests.runtime.fabric.soak` runs the long one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from duckfleet.runtime.control import ControlClient, ProtocolViolation
from duckfleet.runtime.wire import ControlHeader, ControlType
from tests.runtime.fabric.lying_duck import LyingDuck
from tests.runtime.fabric.soak import soak

ADDRESS = "127.23.8.101"


def test_short_soak_of_the_host(tmp_path: Path) -> None:
    result = soak(tmp_path, seed=20240703, datagrams=8000, messages=600)
    assert result.outcomes["answered"] > 0
    assert {"ProtocolViolation", "DuckLost", "SealError"} <= set(result.outcomes)
    # The mutations reach what lies behind the tags as well as what lies before them.
    assert {"bad_magic", "too_long", "bad_length", "foreign_address", "wrong_session", "replayed"} <= set(result.drops)
    assert {"bad_tag", "unknown_message", "conflicting", "duplicate_fragment"} <= set(result.drops)


@pytest.mark.parametrize(
    ("kind", "payload", "ask"),
    [
        (ControlType.ERROR, b"\x01", ControlClient.stats),
        (ControlType.IDENTITY_REPLY, b"\x01\x00", ControlClient.identity),
        (ControlType.STATS_REPLY, b"[" * 200_000, ControlClient.stats),
        (ControlType.STATS_REPLY, json.dumps([1]).encode(), ControlClient.stats),
        (ControlType.STATS_REPLY, b"\xff{", ControlClient.stats),
        (ControlType.STATS_REPLY, b'{"a":' + b"9" * 100_000 + b"}", ControlClient.stats),
    ],
    ids=["short-error", "short-identity", "deep-json", "json-list", "not-utf8", "endless-number"],
)
def test_nonsense_from_a_duck_is_a_protocol_violation(
    kind: ControlType, payload: bytes, ask: Callable[[ControlClient], object]
) -> None:
    def frame(request: ControlHeader, _: bytes) -> bytes:
        return ControlHeader(type=kind, request_id=request.request_id, length=len(payload)).pack() + payload

    with (
        LyingDuck(ADDRESS, None, frame, lambda data: (data, False)) as duck,
        ControlClient(ADDRESS, duck.port, None, 20.0, name="liar") as client,
        pytest.raises(ProtocolViolation, match="liar"),
    ):
        ask(client)
