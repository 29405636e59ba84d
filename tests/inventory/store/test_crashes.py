"""Several writers lose nothing; a writer that is killed at any moment leaves a readable store with all it confirmed."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duckfleet.inventory.site import Duck
from duckfleet.inventory.store import Store

ANN = Duck("00:e0:4c:00:00:01", "ann", "10.21.1.101", "d1")

# Writes events n = 0, 1, ... of its name, and prints each number once the store has confirmed it.
WRITER = """
import sys
from duckfleet.inventory.site import Duck
from duckfleet.inventory.store import Store
store = Store(sys.argv[1])
duck = Duck("00:e0:4c:00:00:01", "ann", "10.21.1.101", "d1")
flip = lambda state, event: "up" if state != "up" else "lost"
for n in range(int(sys.argv[3])):
    store.transition(duck, "answered", {"writer": sys.argv[2], "n": n}, flip)
    print(n, flush=True)
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_writers_at_once_lose_no_event(url: str) -> None:
    children = [writer(url, name, 100) for name in ("a", "b")]
    assert [child.wait(60) for child in children] == [0, 0]
    store = Store(url)
    events = store.events()
    written = {(event.evidence["writer"], event.evidence["n"]) for event in events}
    assert written == {(name, n) for name in "ab" for n in range(100)}
    # Each transition began where the one before it ended: none was decided on a stale state.
    assert all(later.from_state == earlier.to_state for earlier, later in itertools.pairwise(events))
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_kill_9_at_any_moment_leaves_every_confirmed_event(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    delay_s = random.Random(seed).uniform(0.0, 0.9)  # from before the store is made to the middle of its writing
    child = writer(url, "a", 1_000_000)
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    confirmed = [int(line) for line in child.communicate(timeout=30)[0].split("\n")[:-1]]
    store = Store(url)
    found = [event.evidence["n"] for event in store.events()]
    assert found[: len(confirmed)] == confirmed
    assert len(found) <= len(confirmed) + 1  # one may have been written and not yet confirmed
    before = len(found)
    store.transition(ANN, "answered", {"n": "after"}, lambda _state, _event: "up")
    assert len(store.events()) == before + 1
    store.close()


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    from duckfleet.inventory.store.connect import make_engine, write_transaction

    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    store = Store(url)
    store.know([ANN])
    with write_transaction(make_engine(url), url):
        assert store.ducks()[ANN.mac].state == "unknown"
    store.close()
