"""The labelled corpus is well formed: every case parses, labels are of the vocabulary, the counts hold."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).parent / "corpus"
CASES = sorted(path for path in CORPUS.iterdir() if path.is_dir())

MIN_CASES, MIN_HEALTHY = 72, 20
MIN_HELD_OUT, MAX_HELD_OUT = 0.30, 0.37
KEYS = {"title": str, "healthy": bool, "expected": list, "outside": str, "held_out": bool, "story": str}
SOURCES = {
    "none": (set(), set()),  # those that must be there, those that may be
    "switch": ({"switch"}, {"switch", "lldp"}),
    "plug": ({"plug"}, {"plug"}),
    "person": ({"person"}, {"person"}),
    "full": ({"switch", "plug"}, {"switch", "plug", "lldp", "person"}),
}
JSON_FILES = {"duck.json", "fleet.json", "burst.json", "bandwidth.json", "kernels.json", "outside.json"}
TEXT_FILES = {
    *("dmidecode.txt", "meminfo.txt", "rtc.txt", "rtc_reading.txt", "cmos.txt", "edac.txt", "mce.txt", "memtest.txt"),
    *("ethtool.txt", "ethtool_s_before.txt", "ethtool_s_after.txt", "ip_link.txt", "rapl.txt", "thermal.txt"),
    *("cpufreq.txt", "dmesg.txt", "dhcp.log", "wol.txt", "events.txt", "df.txt"),
}
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"

each_case = pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)


@cache
def vocabulary() -> frozenset[str]:
    """The codes in the table of causes of the corpus's README."""
    section = (CORPUS / "README.md").read_text().split("## Causes")[1].split("\n## ")[0]
    return frozenset(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def label(case: Path) -> dict[str, Any]:
    return tomllib.loads((case / "case.toml").read_text())


@each_case
def test_label_has_its_keys_and_no_others(case: Path) -> None:
    found = label(case)
    assert {key: type(value) for key, value in found.items()} == KEYS
    assert found["title"].strip() and found["story"].strip()


@each_case
def test_causes_are_of_the_vocabulary(case: Path) -> None:
    expected = label(case)["expected"]
    assert expected and len(set(expected)) == len(expected)
    assert set(expected) <= vocabulary()


@each_case
def test_healthy_says_the_same_as_expected(case: Path) -> None:
    found = label(case)
    assert found["healthy"] == (found["expected"] == ["none"])


@each_case
def test_outside_evidence_is_of_the_stated_level(case: Path) -> None:
    needed, allowed = SOURCES[label(case)["outside"]]
    given = set(json.loads((case / "outside.json").read_text()))
    assert needed <= given <= allowed


@each_case
def test_files_are_known_and_not_empty(case: Path) -> None:
    names = {path.name for path in case.iterdir()}
    assert {"case.toml", "duck.json", "events.txt", "outside.json"} <= names
    assert names <= JSON_FILES | TEXT_FILES | {"case.toml"}
    assert all((case / name).stat().st_size for name in names - {"events.txt"})


@each_case
def test_json_files_are_objects(case: Path) -> None:
    for path in case.glob("*.json"):
        assert isinstance(json.loads(path.read_text()), dict), path.name


@each_case
def test_fleet_overrides_have_the_keys_of_the_default(case: Path) -> None:
    if not (case / "fleet.json").exists():
        return
    default = json.loads((CORPUS / "fleet_default.json").read_text())
    assert set(json.loads((case / "fleet.json").read_text())) - {"domains"} == set(default)


@each_case
def test_pattern_test_is_one_line_of_json_or_a_shell_complaint(case: Path) -> None:
    path = case / "memtest.txt"
    if not path.exists() or not path.read_text().startswith("{"):
        return
    (line,) = path.read_text().splitlines()
    report = json.loads(line)
    if "error" not in report:
        assert set(report) == {"tested_bytes", "errors", "patterns"}
        for error in report["errors"]:
            assert int(error["expected"], 16) != int(error["got"], 16)
            assert int(error["address"], 16) > 0


@each_case
def test_history_is_in_order_and_not_of_the_future(case: Path) -> None:
    now = datetime.fromisoformat(json.loads((case / "duck.json").read_text())["now"])
    times = []
    for line in (case / "events.txt").read_text().splitlines():
        time, state, event, evidence = line.split("\t")
        assert state and event and isinstance(json.loads(evidence), dict)
        times.append(datetime.fromisoformat(time))
    assert times == sorted(times)
    assert all(time <= now for time in times)


@each_case
def test_dhcp_log_states_its_window(case: Path) -> None:
    path = case / "dhcp.log"
    if path.exists():
        first = path.read_text().splitlines()[0]
        window = re.fullmatch(rf"# watched ({ISO}\+00:00) to ({ISO}\+00:00) on \S+ \([\d./]+\)", first)
        assert window and window[1] < window[2]


@each_case
def test_rtc_reading_is_one_line_of_times(case: Path) -> None:
    path = case / "rtc_reading.txt"
    if path.exists():
        pair = rf"rtc={ISO} host={ISO}\+00:00"
        earlier = rf" earlier_rtc={ISO} earlier_host={ISO}\+00:00"
        assert re.fullmatch(f"{pair}({earlier})?\n", path.read_text())


def test_names_are_numbered_without_gaps() -> None:
    numbers = [re.fullmatch(r"(\d{3})-[a-z0-9]+(?:-[a-z0-9]+)*", case.name) for case in CASES]
    assert [int(match[1]) if match else -1 for match in numbers] == list(range(1, len(CASES) + 1))


def test_there_are_enough_cases_and_enough_healthy_ones() -> None:
    assert len(CASES) >= MIN_CASES
    assert sum(label(case)["healthy"] for case in CASES) >= MIN_HEALTHY


def test_every_cause_is_the_first_of_some_case() -> None:
    assert {label(case)["expected"][0] for case in CASES} == vocabulary()


def test_a_third_is_held_out_of_the_whole_and_of_each_kind() -> None:
    held_out: dict[str, list[bool]] = defaultdict(list)
    for case in CASES:
        held_out[label(case)["expected"][0]].append(label(case)["held_out"])
    total = sum(sum(flags) for flags in held_out.values())
    assert MIN_HELD_OUT <= total / len(CASES) <= MAX_HELD_OUT
    uneven = {cause for cause, flags in held_out.items() if abs(sum(flags) - len(flags) / 3) > 1}
    assert not uneven


def test_every_level_of_outside_evidence_occurs_in_both_halves() -> None:
    for held_out in (False, True):
        levels = {label(case)["outside"] for case in CASES if label(case)["held_out"] == held_out}
        assert levels == set(SOURCES)
