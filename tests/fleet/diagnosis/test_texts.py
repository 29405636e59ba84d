"""What a person reads: the reasoning, and the list to walk by."""

from __future__ import annotations

import json
from pathlib import Path

from duckfleet.fleet.diagnosis.explain import explain_text
from duckfleet.fleet.diagnosis.workorder import Patient, jobs, natural, workorder_text
from tests.fleet.diagnosis.boxes import diagnosis_of, dmidecode, ethtool, event, healthy

GOLDEN = Path(__file__).parent / "golden"
SILENT = {
    **{name: None for name in healthy() if name not in ("duck.json", "fleet.json")},
    "outside.json": json.dumps(
        {"switch": {"port": "1/0/7", "port_up": True, "speed_mbps": 2500, "since": "2026-03-10T11:50:08+00:00"}}
    ),
    "events.txt": event("2026-03-09T20:00:00", "off", "power_cut", how="poweroff")
    + event("2026-03-10T11:50:00", "waking", "wake_sent")
    + event("2026-03-10T11:52:00", "lost", "timed_out", in_state="waking"),
}
SHORT = {
    "dmidecode.txt": dmidecode("16384 MB", "No Module Installed"),
    "meminfo.txt": "MemTotal:       16100000 kB\n",
    "edac.txt": "sh: 1: grep: not found\n",
}


def patients() -> list[Patient]:
    slow_port = ethtool("1000Mb/s", partner="1000baseT/Full")
    return [
        Patient("d1-110", "10.21.1.110", "A10", diagnosis_of(SILENT)),
        Patient("d1-102", "10.21.1.102", "A2", diagnosis_of(SHORT)),
        Patient("d1-103", "10.21.1.103", "A3", diagnosis_of({})),
        Patient("d1-104", "10.21.1.104", "A4", diagnosis_of({"ethtool.txt": slow_port})),
    ]


def test_reasoning_reads_as_kept() -> None:
    text = "\n".join(explain_text(diagnosis_of(changes)) for changes in (SILENT, SHORT, {}))
    assert text == (GOLDEN / "explain.txt").read_text()


def test_walk_up_list_reads_as_kept() -> None:
    assert workorder_text(patients()) == (GOLDEN / "workorder.txt").read_text()


def test_walk_goes_along_the_rack_and_leaves_out_the_healthy() -> None:
    assert [job.duck for job in jobs(patients())] == ["d1-102", "d1-110", "d1-104"]


def test_nothing_to_do() -> None:
    assert workorder_text([Patient("d", "a", "A1", diagnosis_of({}))]) == "nothing to do: no duck has a finding\n"


def test_rack_positions_are_in_the_order_of_a_walk() -> None:
    assert sorted(["B1", "A10", "A2", "A", ""], key=natural) == ["", "A", "A2", "A10", "B1"]
