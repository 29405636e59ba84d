"""A bit that flips in a stored chunk is found while the duck runs, and mended in place by sending the chunk again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fp9_kernels import chunk_digest
from duckfleet.runtime.control import ControlClient
from tests.runtime.duckd.duck_process import DuckProcess
from tests.runtime.duckd.small_model import SmallModel

PATIENCE_S = 30


def scrub_of(control: ControlClient) -> dict[str, Any]:
    return control.stats()["scrub"]


def wait_until_found(control: ControlClient, found: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + PATIENCE_S
    while scrub_of(control)["found"] < found:
        assert time.monotonic() < deadline_s, scrub_of(control)
        time.sleep(0.02)
    return scrub_of(control)


def flip(file: Path, at: int) -> None:
    """In the page cache, which is what the duck computes with."""
    with file.open("r+b") as stored:
        stored.seek(at)
        (byte,) = stored.read(1)
        stored.seek(at)
        stored.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_flipped_bit_is_found_and_mended(tmp_path: Path, restarted: bool) -> None:
    model = SmallModel()
    chunks = {chunk_digest(chunk): chunk for chunk in model.chunks()}
    store = tmp_path / "store"
    duck = DuckProcess(tmp_path / "duck", options=("--store", str(store), "--scrub-mib-per-s", "10000"))
    with duck:
        with duck.control() as control:
            for digest, chunk in chunks.items():
                control.put_chunk(digest, chunk)
            control.assign(model.assignment())
        if restarted:
            duck.stop()
            duck.start()
        with duck.control() as control:
            digests = list(chunks)
            before = {path.name: path.read_bytes() for path in store.iterdir()}
            while scrub_of(control)["passes"] < 2:
                time.sleep(0.02)
            assert scrub_of(control)["found"] == scrub_of(control)["damaged"] == 0

            victim = digests[1]
            flip(store / f"{victim}.chunk", len(before[f"{victim}.chunk"]) // 2)
            found = wait_until_found(control, 1)
            assert (found["damaged"], found["damaged_chunks"]) == (1, [victim])
            assert control.have(digests) == [digest != victim for digest in digests]
            assert "chunk_damaged" in duck.log_text() and victim in duck.log_text()

            control.put_chunk(victim, chunks[victim])
            assert all(control.have(digests))
            now = scrub_of(control)
            assert (now["damaged"], now["mended"]) == (0, 1)
            assert {path.name: path.read_bytes() for path in store.iterdir()} == before
            assert control.identity().assigned  # the shard stayed as it was

            # And once more, at the other end of it.
            flip(store / f"{victim}.chunk", 200)
            wait_until_found(control, 2)
            control.put_chunk(victim, chunks[victim])
            assert {path.name: path.read_bytes() for path in store.iterdir()} == before


def test_a_scrub_can_be_left_out(tmp_path: Path) -> None:
    with DuckProcess(tmp_path / "duck", options=("--scrub-mib-per-s", "0")) as duck, duck.control() as control:
        assert not any(scrub_of(control).values())
