"""What Ansible, ssh and stressapptest say, and what we make of it: tables of real words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.playbooks import burn_in, firmware
from duckfleet.fleet.playbooks.events import Tally, TaskEvent, tally, task_event
from duckfleet.fleet.playbooks.failures import explain
from duckfleet.fleet.playbooks.runner import require_programs
from duckfleet.fleet.playbooks.verdicts import judge
from duckfleet.inventory.errors import OperatorError

SSH = "Failed to connect to the host via ssh: "
SAT = (
    "Stats: Completed: 900.00M in 5.00s, with {0} hardware incidents, {1} errors\nStats: Found {0} hardware incidents\n"
)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (SSH + "No ED25519 host key is known for 10.21.1.101 and you have requested strict checking.", "not pinned"),
        (SSH + "Host key for 10.21.1.101 has changed and you have requested strict checking.", "another ssh host key"),
        (SSH + "root@10.21.1.101: Permission denied (publickey).", "authorized_keys"),
        (SSH + "ssh: connect to host 10.21.1.101 port 22: Connection refused", "no ssh server"),
        (SSH + "ssh: connect to host 10.21.1.101 port 22: No route to host", "does not answer ssh"),
        (SSH + "ssh: connect to host 10.21.1.101 port 22: Connection timed out", "does not answer ssh"),
        (SSH + "Shared connection to 10.21.1.101 closed.", "the connection was lost"),
        ("/bin/sh: 1: /usr/bin/python3: not found", "it has no Python"),
        ("Timeout, server 10.21.1.101 not responding.", "the connection was lost"),
        ("cp: error writing '/usr/local/sbin/duckd': No space left on device", "its disk is full"),
    ],
)
def test_failures_say_what_is_wrong_and_what_to_do(said: str, words: str) -> None:
    assert words in explain({"msg": said}, "place duckd")


def test_other_failures_keep_their_words_and_name_the_task() -> None:
    result = {"msg": "non-zero return code", "stderr": "E: broken\n  packages", "stdout": ""}
    assert explain(result, "install") == "install: E: broken packages"
    items = {"msg": "One or more items failed", "results": [{"failed": True, "msg": "no such unit"}, {"msg": "well"}]}
    assert explain(items, "enable") == "enable: no such unit"
    assert explain({}, "") == "a task: it said nothing"


@pytest.mark.parametrize("results", [5, "five", {"a": 1}, [None, 5, {"failed": True, "msg": {"a": [1]}}]])
def test_a_result_that_is_none_is_no_failure_of_ours(results: Any) -> None:
    assert explain({"failed": True, "results": results, "msg": "no"}, "do").startswith("do: ")


def test_a_machine_that_says_anything_is_kept_in_bounds() -> None:
    flood = "x" * 1_000_000
    assert len(explain({"msg": flood, "stderr": f"\x1b[2J{flood}"}, "do")) < 1000
    found = burn_in.read(f"Report Error: miscompare {flood}\n" * 9 + "Stats: Found 9 hardware incidents\n", 1)
    assert len(found.lines) == burn_in.MAX_LINES and max(map(len, found.lines)) <= burn_in.MAX_CHARS
    assert len(burn_in.read(f"Status: FAIL - HW problems {flood}\n", 1).detail) < 1000
    read = firmware.read({"card": f"driver: {flood}\n", "disks": f"/sys/a/model:{flood}\n" * 1000})
    assert len(json.dumps(read)) <= len(firmware.TEXTS) * firmware.MAX_CHARS
    report = {"kind": "burn_in", "return_code": float("inf"), "seconds": "9" * 5000, "mib": [], "output": 5}
    assert judge(Tally("ann", num_ok=1, report=report), {}).outcome == "procedure"


@pytest.mark.parametrize(
    ("output", "code", "result"),
    [
        (SAT.format(0, 0) + "\nStatus: PASS - please verify no corrected errors\n", 0, "passed"),
        (SAT.format(0, 0) + "\r\nStatus: PASS - please verify no corrected errors\r\n", 0, "passed"),
        (SAT.format(0, 0) + "Status: PASS - please verify no corrected errors\n", 137, "procedure"),
        (SAT.format(3, 0) + "Status: FAIL - test discovered HW problems\n", 1, "errors"),
        (SAT.format(3, 1) + "Status: FAIL - test encountered procedural errors\n", 1, "errors"),
        ("Status: FAIL - test discovered HW problems\n", 1, "errors"),
        (SAT.format(0, 1) + "Status: FAIL - test encountered procedural errors\n", 1, "procedure"),
        ("bash: line 1: stressapptest: command not found\n", 127, "procedure"),
        ("Log: Commandline - stressapptest\nKilled\n", 137, "procedure"),
        ("", -1, "procedure"),
    ],
)
def test_burn_in_tells_a_bad_box_from_a_test_that_was_none(output: str, code: int, result: str) -> None:
    found = burn_in.read(output, code)
    assert found.result == result
    assert bool(found.incidents) <= (result == "errors") and found.detail


def event(name: str, **data: Any) -> dict[str, Any]:
    return {"event": name, "event_data": {"host": "ann", "task": "do", **data}}


def test_events_become_tasks() -> None:
    assert task_event({"event": "playbook_on_start", "event_data": {}}) is None
    assert task_event({"event": "runner_on_ok"}) is None
    for raw, status in (
        (event("runner_on_start"), "started"),
        (event("runner_on_ok", res={"changed": False}), "ok"),
        (event("runner_on_ok", res={"changed": True}), "changed"),
        (event("runner_on_skipped"), "skipped"),
        (event("runner_on_failed", res={"msg": "no"}), "failed"),
        (event("runner_on_failed", res={"msg": "no"}, ignore_errors=True), "ignored"),
        (event("runner_on_unreachable", res={"msg": "no"}), "unreachable"),
    ):
        found = task_event(raw)
        assert found is not None and (found.host, found.task, found.status) == ("ann", "do", status)


def test_what_was_counted_is_judged() -> None:
    done = [TaskEvent("ann", "one", "ok"), TaskEvent("ann", "two", "changed"), TaskEvent("bob", "one", "failed", "why")]
    found = tally(["ann", "bob", "cat"], [*done, TaskEvent("eve", "one", "ok")])
    assert set(found) == {"ann", "bob", "cat"}
    assert [judge(found[name], {}).outcome for name in found] == ["changed", "failed", "not run"]
    assert judge(found["ann"], {}, is_check=True).detail == "1 would be changed"
    assert judge(found["ann"], {}, was_interrupted=True).outcome == "interrupted"
    assert not judge(Tally("ann", num_ok=1, is_unreachable=True), {}).is_well
    lost = judge(Tally("ann", num_ok=4), {}, must_report=True)  # ansible-runner empties results over 700 kB
    assert (lost.outcome, lost.is_well, lost.event) == ("unknown", False, "playbook_failed")


def test_what_firmware_could_not_be_read_is_no_change() -> None:
    before = {"bios_version": "1", "card_driver": "igc", "run": "a"}
    assert firmware.changes(before, {"bios_version": "1", "run": "b"}) == []
    assert firmware.changes(before, {"bios_version": "2"}) == ["bios_version: 1 before, 2 now"]
    assert firmware.read({})["unknown"].keys() == {"dmidecode", "microcode", "card", "disks"}


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"no ansible-playbook .*pip install ansible-core"):
        require_programs(needs_ssh=False, search_path=str(tmp_path))
    program = tmp_path / "ansible-playbook"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    require_programs(needs_ssh=False, search_path=str(tmp_path))
    with pytest.raises(OperatorError, match="no ssh on this host"):
        require_programs(needs_ssh=True, search_path=str(tmp_path))
