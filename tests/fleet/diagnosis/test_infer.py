"""The engine: weights, ranking, ties, and that findings of one evidence are one finding."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duckfleet.fleet.diagnosis.causes import CAUSES
from duckfleet.fleet.diagnosis.findings import HEALTHY, INSUFFICIENT, Severity
from duckfleet.fleet.diagnosis.next_tests import TESTS
from duckfleet.fleet.diagnosis.tables.all import SYMPTOMS
from tests.fleet.diagnosis.boxes import codes, diagnosis_of, dmidecode, ethtool, event, healthy, statistics

SAYINGS = st.sampled_from(["", "sh: 1: nope: not found\n", "{}", "[1]", '{"error": "x"}', "\x00\xff", "0" * 5000])


def test_every_cause_of_the_tables_is_known() -> None:
    for symptom in SYMPTOMS:
        assert set(symptom.priors) <= CAUSES.keys(), symptom.code
        for clue in symptom.clues:
            assert set(clue.factors) <= CAUSES.keys(), (symptom.code, clue.see)


def test_every_clue_moves_something() -> None:
    for symptom in SYMPTOMS:
        for clue in symptom.clues:
            factors = [clue.factors.get(code, clue.rest) for code in symptom.priors]
            assert any(factor != factors[0] for factor in factors) or len(factors) == 1, (symptom.code, clue.see)


def test_every_symptom_has_a_code_of_its_own_and_known_owners() -> None:
    names = [symptom.code for symptom in SYMPTOMS]
    assert len(set(names)) == len(names)
    assert {owner for symptom in SYMPTOMS for owner in symptom.part_of} <= set(names)


def test_every_test_can_speak_for_a_known_cause() -> None:
    assert all(test.positive <= CAUSES.keys() for test in TESTS)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(healthy().keys() - {"duck.json"})), SAYINGS))
def test_rubbish_in_any_source_gives_a_sound_diagnosis(changes: dict[str, str]) -> None:
    diagnosis = diagnosis_of(changes)
    for finding in diagnosis.findings:
        assert sum(cause.weight for cause in finding.causes) <= 1.001
        assert [cause.weight for cause in finding.causes] == sorted((c.weight for c in finding.causes), reverse=True)
        assert finding.evidence and finding.next_test.text
    assert not diagnosis.is_to_be_held


def test_same_look_gives_the_same_diagnosis() -> None:
    changes = {"ethtool.txt": ethtool(speed="1000Mb/s"), "rtc.txt": "batt_status\t: dead\n"}
    assert diagnosis_of(changes) == diagnosis_of(changes)


def test_order_of_texts_does_not_matter() -> None:
    from duckfleet.fleet.diagnosis import diagnose, look_from_texts

    texts = {**healthy(), "ethtool.txt": ethtool(speed="1000Mb/s")}
    names = ["ethtool.txt", "burst.json", "events.txt"]
    rest = {name: text for name, text in texts.items() if name not in names}
    found = set()
    for order in permutations(names):
        found.add(repr(diagnose(look_from_texts({**{name: texts[name] for name in order}, **rest}))))
    assert len(found) == 1


def test_worse_findings_come_first() -> None:
    changes = {
        "memtest.txt": json.dumps(
            {"tested_bytes": 1 << 30, "errors": [{"address": "0x10", "expected": "0x0", "got": "0x8"}], "patterns": []}
        ),
        "ethtool.txt": ethtool(speed="1000Mb/s"),
        "rtc.txt": "batt_status\t: dead\n",
        "dmidecode.txt": dmidecode("16 GB", "16 GB", version="1.00").replace("03/18/2024", "03/18/2023"),
    }
    diagnosis = diagnosis_of(changes)
    assert codes(diagnosis) == ["memory_errors", "link", "battery", "bios_outdated"]
    assert [finding.severity for finding in diagnosis.findings] == sorted(Severity, reverse=True)


def test_one_evidence_is_one_finding() -> None:
    """A broken link loses datagrams: that is not a second finding."""
    lost = json.dumps({"to_duck": {"sent": 1000, "received": 900}, "from_duck": {"sent": 1000, "received": 1000}})
    changes = {
        "ethtool_s_before.txt": statistics(),
        "ethtool_s_after.txt": statistics(rx_packets=1_020_000, rx_crc_errors=300),
        "burst.json": lost,
    }
    assert codes(diagnosis_of(changes)) == ["link"]


def test_silence_without_any_clue_is_insufficient_and_holds_nobody() -> None:
    history = event("2026-03-09T08:00:00", "up", "answered") + event(
        "2026-03-10T11:00:00", "lost", "went_silent", ping="0/3"
    )
    kept = ("duck.json", "fleet.json", "outside.json")
    changes = {name: None for name in healthy() if name not in kept}
    diagnosis = diagnosis_of({**changes, "events.txt": history})
    assert diagnosis.top_cause == INSUFFICIENT and not diagnosis.is_to_be_held
    assert diagnosis.findings[0].next_test.text.startswith("ask the switch")


def silent(outside: dict[str, object], history: str = "") -> str:
    ordered_off = event("2026-03-09T20:00:00", "off", "power_cut", how="poweroff")
    wake = event("2026-03-10T11:50:00", "waking", "wake_sent") + event(
        "2026-03-10T11:52:00", "lost", "timed_out", in_state="waking"
    )
    kept = ("duck.json", "fleet.json")
    changes: dict[str, str | None] = {name: None for name in healthy() if name not in kept}
    return diagnosis_of(
        {**changes, "outside.json": json.dumps(outside), "events.txt": history + ordered_off + wake}
    ).top_cause


LOST_CLOCK = (
    event("2026-01-05T08:00:00", "off", "power_cut", ac="lost", until="2026-01-05T08:30:00+00:00")
    + event("2026-01-05T09:00:00", "up", "answered")
    + event("2026-01-05T09:00:01", "up", "rtc_read", rtc="2018-01-01T00:01:00", host="2026-01-05T09:00:01+00:00")
)
KEPT_CLOCK = LOST_CLOCK.replace("2018-01-01T00:01:00", "2026-01-05T09:00:03")
WOKE = {"port": "7", "port_up": True, "speed_mbps": 2500, "since": "2026-03-10T11:50:08+00:00"}
WAITS = {**WOKE, "speed_mbps": 10, "since": "2026-03-09T20:00:10+00:00"}


@pytest.mark.parametrize(
    ("history", "expected"), [(LOST_CLOCK, "dead_cmos_battery"), (KEPT_CLOCK, "boot_order"), ("", "dead_cmos_battery")]
)
def test_history_separates_what_a_single_look_cannot(history: str, expected: str) -> None:
    """Awake, and no request: an earlier reading of the clock after a loss of mains tells battery from boot order."""
    assert silent({"switch": WOKE}, history) == expected


@pytest.mark.parametrize(
    ("outside", "expected"),
    [
        ({"switch": WAITS}, "wol_disabled"),
        ({"plug": {"watts": 0.0, "relay": "on"}}, "no_power"),
        ({"plug": {"watts": 4.2, "relay": "on", "history": [["2026-03-10T11:49:00+00:00", 0.8]]}}, "dimm_missing"),
        ({"person": [{"asked": "screen", "answer": "press_f1"}]}, "dead_cmos_battery"),
        ({"person": [{"asked": "screen", "answer": "os_desktop"}]}, "boot_order"),
        ({"person": [{"asked": "cable", "answer": "loose"}]}, "cable_unseated"),
        ({"switch": {"port_up": False, "admin_up": False}}, "switch_port"),
        ({}, INSUFFICIENT),
    ],
)
def test_each_level_of_outside_evidence_says_something(outside: dict[str, object], expected: str) -> None:
    assert silent(outside) == expected


def test_box_that_was_ordered_off_is_healthy() -> None:
    history = event("2026-03-09T08:00:00", "up", "answered") + event(
        "2026-03-09T20:00:00", "off", "power_cut", how="poweroff"
    )
    kept = ("duck.json", "fleet.json")
    changes = {name: None for name in healthy() if name not in kept}
    assert diagnosis_of({**changes, "events.txt": history}).top_cause == HEALTHY
