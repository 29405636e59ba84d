"""Quarantine by automation and by people: each lifts only its own, and no reason is ever overwritten."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet import lifecycle
from duckfleet.fleet.cli import run
from duckfleet.fleet.quarantine import Conclusion, conclude
from duckfleet.inventory.site import Site
from duckfleet.inventory.store import Store
from tests.fleet.diagnosis.reports import NUM_DUCKS, fresh_clock, mac, probe, report

WRONG = {"address": "0x1000", "expected": "0xff", "got": "0xfe"}


def with_test(*errors: dict[str, str]) -> dict[str, Any]:
    """A report with a memory test in it."""
    values = fresh_clock(copy.deepcopy(report(1)))
    values["memory_test"] = {"tested_bytes": 1 << 30, "patterns": ["random"], "errors": list(errors)}
    return values


@pytest.fixture(autouse=True)
def peers(store: Store) -> None:
    for i in range(2, NUM_DUCKS + 1):
        for _ in range(2):
            probe(store, i, fresh_clock(report(i)))


def probed(site: Site, store: Store, values: dict[str, Any]) -> Conclusion:
    """Duck 1 is probed, as `duckctl probe` does it, with this outcome."""
    duck = site.ducks[0]
    if store.ducks()[duck.mac].state != "quarantined":
        for event in ("answered", "probe_started"):
            store.transition(duck, event, {}, lifecycle.next_state)
    probe(store, 1, values)
    (conclusion,) = conclude(site, store, [duck], {})
    return conclusion


def state(store: Store) -> str:
    return store.ducks()[mac(1)].state


def reasons(store: Store) -> list[tuple[str, str]]:
    return [(hold.kind, hold.reason) for hold in store.holds() if hold.mac == mac(1)]


def test_a_good_duck_is_healthy_and_held_by_nobody(site: Site, store: Store) -> None:
    assert probed(site, store, with_test()) == Conclusion("healthy", ())
    assert state(store) == "healthy" and reasons(store) == []


def test_wrong_bits_put_a_duck_into_quarantine_once(site: Site, store: Store) -> None:
    for _ in range(3):
        assert probed(site, store, with_test(WRONG)).verdict == "quarantined"
    assert state(store) == "quarantined"
    assert reasons(store) == [("automatic", "memory returns wrong bits (memory module faulty)")]


def test_a_lesser_finding_makes_it_degraded(site: Site, store: Store) -> None:
    values = with_test()
    values["nics"][0]["speed_mbit_per_s"] = 100
    conclusion = probed(site, store, values)
    assert conclusion.verdict == state(store) == "degraded"
    assert conclusion.reasons == ("its network link is bad (network cable bad)",)
    assert store.ducks()[mac(1)].evidence["reasons"] == list(conclusion.reasons)


def test_it_comes_out_when_the_test_is_clean(site: Site, store: Store) -> None:
    probed(site, store, with_test(WRONG))
    assert probed(site, store, with_test()) == Conclusion("healthy", ())
    assert state(store) == "healthy" and reasons(store) == []
    kinds = [event.kind for event in store.events([mac(1)])]
    assert kinds[-5:] == ["hold_lifted", "released", "answered", "probe_started", "probe_passed"]


def test_a_probe_without_the_test_clears_nobody(site: Site, store: Store) -> None:
    probed(site, store, with_test(WRONG))
    quick = with_test()
    del quick["memory_test"]
    assert probed(site, store, quick).verdict == "quarantined"
    failed = copy.deepcopy(quick)
    failed["unknown"] = [{"what": "memory_test", "reason": "not even one pattern was done in time"}]
    assert probed(site, store, failed).verdict == "quarantined"
    assert state(store) == "quarantined"


def test_a_persons_hold_stays_and_so_do_its_words(site: Site, store: Store) -> None:
    duck = site.ducks[0]
    store.add_hold(duck.mac, "human", "fan rattles")
    store.transition(duck, "quarantined", {"reason": "fan rattles", "kind": "human"}, lifecycle.next_state)
    assert probed(site, store, with_test(WRONG)).verdict == "quarantined"
    assert [kind for kind, _ in reasons(store)] == ["human", "automatic"]
    probed(site, store, with_test())
    assert reasons(store) == [("human", "fan rattles")]
    assert state(store) == "quarantined"


def test_a_persons_release_leaves_automations_hold(site: Site, store: Store) -> None:
    probed(site, store, with_test(WRONG))
    assert store.lift_holds(mac(1), "human") == 0
    assert [kind for kind, _ in reasons(store)] == ["automatic"]


def test_automation_lifts_only_what_is_over(site: Site, store: Store) -> None:
    """Of two holds of its own, that whose finding goes."""
    probed(site, store, with_test(WRONG))
    other = store.add_hold(mac(1), "automatic", "placed by another tool")
    probed(site, store, with_test())
    assert [hold.id for hold in store.holds() if hold.mac == mac(1)] == [other]
    assert state(store) == "quarantined"


def test_what_went_before_is_in_the_log(site: Site, store: Store) -> None:
    probed(site, store, with_test(WRONG))
    (event,) = [event for event in store.events([mac(1)]) if event.kind == "quarantined"]
    assert event.evidence["finding"] == "memory_errors" and event.evidence["sources"] == ["pattern test"]
    assert event.to_state == "quarantined"


def test_release_by_hand_leaves_automations_hold_unless_it_is_named(
    site: Site, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probed(site, store, with_test(WRONG))
    options = ["--state", str(tmp_path), "--site", str(site.path)]
    assert run([*options, "release", "d1-101"]) == 0
    assert "stays held: memory returns wrong bits" in capsys.readouterr().out
    assert state(store) == "quarantined"
    assert run([*options, "release", "d1-101", "--automatic"]) == 0
    assert reasons(store) == [] and state(store) == "unknown"
