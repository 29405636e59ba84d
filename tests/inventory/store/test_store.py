"""What is written is read back, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from duckfleet.inventory.site import Duck
from duckfleet.inventory.store import Store, StoreError

ANN = Duck("00:e0:4c:00:00:01", "ann", "10.21.1.101", "d1")
BOB = Duck("00:e0:4c:00:00:02", "bob", "10.21.1.102", "d1")


class Unlisted(Exception):
    pass


def decide(state: str, event: str) -> str:
    table = {("unknown", "wake_sent"): "waking", ("waking", "answered"): "up", ("waking", "wake_sent"): "waking"}
    if (state, event) not in table:
        raise Unlisted
    return table[state, event]


def test_a_duck_begins_unknown_and_keeps_its_state_when_it_is_renamed(store: Store) -> None:
    store.know([ANN, BOB])
    store.transition(ANN, "wake_sent", {"packets": 3}, decide)
    moved = Duck(ANN.mac, "anna", "10.21.2.101", "d2")
    store.know([moved, BOB])
    row = store.ducks()[ANN.mac]
    assert (row.name, row.address, row.domain, row.state) == ("anna", "10.21.2.101", "d2", "waking")
    assert store.ducks()[BOB.mac].state == "unknown"


def test_a_transition_and_its_log_line_are_one(store: Store) -> None:
    made = store.transition(ANN, "wake_sent", {"packets": 3}, decide)
    assert (made.from_state, made.to_state) == ("unknown", "waking")
    (event,) = store.events()
    assert (event.id, event.kind, event.duck, event.actor) == (made.event_id, "wake_sent", "ann", "tester")
    assert event.evidence == {"packets": 3}
    assert store.ducks()[ANN.mac].evidence == {"packets": 3}


def test_an_unlisted_transition_writes_nothing(store: Store) -> None:
    store.know([ANN])
    with pytest.raises(Unlisted):
        store.transition(ANN, "answered", {}, decide)
    assert store.events() == []
    assert store.ducks()[ANN.mac].state == "unknown"


def test_a_state_that_stays_keeps_its_beginning_unless_restarted(url: str) -> None:
    now = [100.0]
    store = Store(url, clock=lambda: now[0])
    store.transition(ANN, "wake_sent", {}, decide)
    now[0] = 200.0
    store.transition(ANN, "wake_sent", {}, decide)
    assert store.ducks()[ANN.mac].since_s == 100.0
    store.transition(ANN, "wake_sent", {}, decide, restart=True)
    assert store.ducks()[ANN.mac].since_s == 200.0
    now[0] = 300.0
    store.renew([ANN.mac, BOB.mac], "waking")
    assert (store.ducks()[ANN.mac].since_s, store.ducks()[ANN.mac].confirmed_s) == (200.0, 300.0)
    now[0] = 400.0
    store.renew([ANN.mac], "serving")
    assert store.ducks()[ANN.mac].confirmed_s == 300.0
    store.close()


def test_the_log_is_read_by_duck_by_number_and_from_where_one_was(store: Store) -> None:
    first = store.log("made", {"n": 0})
    for number in range(1, 6):
        store.log("seen", {"n": number}, ANN if number % 2 else BOB)
    assert [event.evidence["n"] for event in store.events()] == [0, 1, 2, 3, 4, 5]
    assert [event.evidence["n"] for event in store.events(limit=2)] == [4, 5]
    assert [event.evidence["n"] for event in store.events([ANN.mac])] == [1, 3, 5]
    assert [event.evidence["n"] for event in store.events(after_id=first, limit=10)] == [1, 2, 3, 4, 5]


def test_probe_runs_and_what_they_measured(store: Store) -> None:
    store.add_probe_run(ANN.mac, 1.0, "ok", {"cpu": "N100"}, measured={"read_bandwidth": (2e10, "B/s")})
    good = store.add_probe_run(ANN.mac, 2.0, "ok", {"cpu": "N100"}, measured={"read_bandwidth": (3e10, "B/s")})
    store.add_probe_run(ANN.mac, 3.0, "unknown", {}, error="no answer")
    assert store.latest_probes()[ANN.mac].error == "no answer"
    assert store.latest_probes(outcome="ok")[ANN.mac].id == good
    assert [measured.value for measured in store.measurements(ANN.mac, "read_bandwidth")] == [2e10, 3e10]
    assert [measured.value for measured in store.measurements(ANN.mac, "read_bandwidth", limit=1)] == [3e10]


def test_a_hold_is_lifted_by_its_own_kind_only(store: Store) -> None:
    store.add_hold(ANN.mac, "human", "fan rattles")
    store.add_hold(ANN.mac, "automatic", "slow")
    assert store.lift_holds(ANN.mac, "automatic") == 1
    assert [(hold.kind, hold.reason) for hold in store.holds()] == [("human", "fan rattles")]
    assert store.lift_holds(ANN.mac, "automatic") == 0
    assert store.lift_holds(ANN.mac, "human") == 1
    assert store.holds() == []


def test_placements_hold_sizes_beyond_32_bits(store: Store) -> None:
    for generation, moved in ((1, 20 << 30), (2, 0)):
        store.add_placement(
            generation, ANN.mac, 3, "big", num_chunks=7, total_bytes=20 << 30, moved_bytes=moved, outcome="ok"
        )
    newest = store.latest_placements()[ANN.mac]
    assert (newest.generation, newest.total_bytes, newest.moved_bytes) == (2, 20 << 30, 0)


def test_generations_only_rise(store: Store) -> None:
    assert [store.next_generation() for _ in range(3)] == [1, 2, 3]
    assert store.next_generation(at_least=40) == 41
    assert store.next_generation(at_least=7) == 42


def test_a_reopened_store_still_knows(url: str) -> None:
    store = Store(url)
    store.transition(ANN, "wake_sent", {}, decide)
    store.close()
    again = Store(url)
    assert again.ducks()[ANN.mac].state == "waking"
    again.close()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("mysql://x/y", "use sqlite"),
        ("nonsense", "use sqlite"),
        ("sqlite:////nonexistent/folder/fleet.db", "--state"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", "PostgreSQL server running"),
    ],
)
def test_a_store_that_cannot_be_opened_says_what_to_do(bad: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        Store(bad)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_store_is_said_as_such(tmp_path) -> None:
    (tmp_path / "fleet.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="damaged"):
        Store(f"sqlite:///{tmp_path / 'fleet.db'}")
