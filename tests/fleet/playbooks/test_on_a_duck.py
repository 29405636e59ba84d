"""Playbooks on a real Debian box over a real ssh server: firmware, burn-in, shutdown, and who is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.lab.ownership import processes_marked
from duckfleet.fleet.playbooks.runner import RUN_VARIABLE
from tests.fleet.network import is_possible
from tests.fleet.playbooks.conftest import MakeShelf, Shelf
from tests.fleet.playbooks.debian_box import Plan, smbios

pytestmark = pytest.mark.skipif(not is_possible(), reason="network and mount namespaces need root")


@pytest.fixture(scope="module")
def shelf(make_shelf: MakeShelf) -> Iterator[Shelf]:
    with make_shelf(Plan(covered={"sys/firmware": smbios("5.26", [16384, 0])})) as made:
        yield made


@pytest.fixture(scope="module")
def inventories(shelf: Shelf) -> list[tuple[int, dict[str, Any]]]:
    """Of the firmware, before and after another version came onto the board: exit codes and records."""
    before = shelf.run("firmware")
    for name, content in smbios("5.27", [16384, 0]).items():
        path = shelf.state / "box/covers/sys/firmware" / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [before, shelf.run("firmware", "@d1")]


def test_firmware_is_read_kept_and_compared(shelf: Shelf, inventories: list[tuple[int, dict[str, Any]]]) -> None:
    (code, record), (_, later) = inventories
    (result,) = record["results"]
    assert (code, result["outcome"], result["machine"]) == (0, "ok", "ann"), result
    assert "N100 box, BIOS 5.26, of 2025-03-14" in result["detail"] and "card veth" in result["detail"]
    event = shelf.events("firmware")[0]
    assert event.mac == shelf.mac and event.evidence["run"] == record["run"]
    assert event.evidence["modules"] == ["DIMM 0 16384 MiB"] and event.evidence["serial"] == "SN-42"
    assert later["results"][0]["outcome"] == "changed"
    assert "bios_version: 5.26 before, 5.27 now" in later["results"][0]["detail"]


def test_a_run_is_kept_in_a_folder_of_its_own_and_can_be_read_afterwards(
    shelf: Shelf, inventories: list[tuple[int, dict[str, Any]]]
) -> None:
    record = inventories[1][1]
    name = record["run"]
    assert (shelf.state / "playbooks" / name).stat().st_mode & 0o777 == 0o700
    kept = json.loads(shelf.duckctl("playbook", "log", name, "--json").stdout)
    assert kept["record"] == record
    tasks = [(task["host"], task["task"], task["status"]) for task in kept["tasks"]]
    assert ("ann", "ask whose kernel it is", "ok") in tasks and ("ann", "report the firmware", "ok") in tasks
    assert "ann  read the firmware's own words  ok" in shelf.duckctl("playbook", "log", name).stdout
    assert "TASK [duck_guard : refuse this host itself]" in shelf.duckctl("playbook", "log", name, "--output").stdout
    names = [one["run"] for one in json.loads(shelf.duckctl("playbook", "log", "--json").stdout)]
    assert names == sorted(names) and {one["run"] for _, one in inventories} <= set(names)
    (finished,) = [event.evidence for event in shelf.events("playbook_finished") if event.evidence["run"] == name]
    assert finished == {"playbook": "firmware", "run": name, "outcome": "ok", "well": 1, "of": 1}


def burn_in(shelf: Shelf, *settings: str) -> tuple[int, Mapping[str, Any]]:
    """(exit code, what the event log holds of it)."""
    code, record = shelf.run("burn-in", "ann", *(word for text in settings for word in ("--set", text)))
    event = shelf.events("burn_in")[-1]
    assert event.mac == shelf.mac and event.evidence["run"] == record["run"]
    return code, event.evidence


def findings(shelf: Shelf) -> list[str]:
    return [found["code"] for found in json.loads(shelf.duckctl("explain", "ann", "--json").stdout)["findings"]]


def test_burn_in_has_three_results_and_the_diagnosis_goes_by_them(shelf: Shelf) -> None:
    code, errors = burn_in(shelf, "seconds=5", "mib=64", "arguments=--force_errors")
    assert (code, errors["result"]) == (3, "errors") and errors["incidents"] > 0
    assert any("miscompare" in line for line in errors["lines"])
    assert "memory_errors" in findings(shelf)
    code, procedure = burn_in(shelf, "seconds=5", "mib=99999999")
    assert (code, procedure["result"]) == (3, "procedure") and "incidents" not in procedure
    assert "memory_errors" in findings(shelf)  # a test that did not take place clears nobody
    code, passed = burn_in(shelf, "seconds=5", "mib=64")
    assert (code, passed["result"]) == (0, "passed")
    assert "memory_errors" not in findings(shelf)


def test_what_a_box_lacks_is_said_with_the_next_step(make_shelf: MakeShelf) -> None:
    with make_shelf(Plan(prepare=("rm usr/bin/stressapptest usr/bin/python3*",))) as shelf:
        code, record = shelf.run("burn-in", "--set", "seconds=5", "--set", "mib=64")
        (result,) = record["results"]
        assert (code, result["outcome"]) == (3, "procedure") and "duck-setup" in result["detail"]
        code, record = shelf.run("duck-setup")
        (result,) = record["results"]
        assert (code, result["outcome"]) == (3, "failed") and "it has no Python" in result["detail"], result


def test_shutdown_is_done_on_the_duck_and_expected_of_it(shelf: Shelf) -> None:
    code, record = shelf.run("shutdown", "ann")
    assert (code, record["results"][0]["detail"]) == (0, "told to power off")
    _wait_for(lambda: shelf.box.path("run/switched-off").exists())
    (event,) = shelf.events("power_cut")
    assert event.to_state == "off" and event.evidence["run"] == record["run"]


def test_nothing_runs_on_the_hosts_own_kernel(make_shelf: MakeShelf) -> None:
    with make_shelf(Plan(boot_id="")) as shelf:
        code, record = shelf.run("shutdown")
        (result,) = record["results"]
        assert (code, result["outcome"], result["num_changed"]) == (3, "failed", 0)
        assert "host's own kernel" in result["detail"]
        time.sleep(2)  # longer than the shutdown waits before it acts
        assert not shelf.box.path("run/switched-off").exists()
        assert not shelf.events("power_cut")


def test_each_duck_has_its_own_result(shelf: Shelf) -> None:
    """One does its part, nobody is at the second's address, and the third's is this host's own."""
    site = shelf.state / "three.toml"
    text = shelf.site.read_text().replace('nodes = "10.21.1.101"', 'nodes = "10.21.1.[1,101-102]"')
    text = text.replace('host_address = "10.21.1.1"', 'host_address = "10.21.1.2"')
    for name, address in (("bob", "10.21.1.102"), ("cat", "10.21.1.1")):
        mac = "00:e0:4c:00:00:" + address.rpartition(".")[2].zfill(2)[-2:]
        text += f'\n[[ducks]]\nmac = "{mac}"\naddress = "{address}"\nname = "{name}"\n'
    site.write_text(text)
    done = shelf.net.on_host(*shelf.command("--site", str(site), "playbook", "run", "firmware", "--json"), timeout=240)
    results = {one["machine"]: one for one in json.loads(done.stdout)["results"]}
    assert done.returncode == 3
    assert {name: one["outcome"] for name, one in results.items()} == {
        "ann": "ok",
        "bob": "unreachable",
        "cat": "refused",
    }, results
    assert "it does not answer ssh: `duckctl status`" in results["bob"]["detail"]
    assert "this host's own address" in results["cat"]["detail"]


def test_an_unknown_and_a_changed_host_key_are_refused_with_the_next_step(make_shelf: MakeShelf) -> None:
    with make_shelf(is_known=False) as shelf:
        code, record = shelf.run("firmware")
        (result,) = record["results"]
        assert (code, result["outcome"], result["num_ok"]) == (3, "unreachable", 0)
        assert "not pinned yet; `duckctl probe --ssh`" in result["detail"]
        other = (shelf.state / "keys/ssh_ed25519.pub").read_text().split()[1]
        (shelf.state / "keys/known_hosts").write_text(f"10.21.1.101 ssh-ed25519 {other}\n")
        code, record = shelf.run("firmware")
        assert (code, record["results"][0]["num_ok"]) == (3, 0)
        assert "another ssh host key than the pinned one" in record["results"][0]["detail"]
        (shelf.state / "keys/known_hosts").unlink()
        shelf.duckctl("probe", "--ssh", "ann")  # the next step that was named
        assert shelf.run("firmware")[1]["results"][0]["num_ok"] > 0


def test_ctrl_c_ends_the_run_here_and_on_the_duck_and_leaves_no_process(shelf: Shelf) -> None:
    command = shelf.command("playbook", "run", "burn-in", "--set", "seconds=600", "--set", "mib=64", "--json")
    run = subprocess.Popen(
        ["ip", "netns", "exec", shelf.net.host, *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    _wait_for(lambda: _stress_tests(shelf) != [])
    folder = _unfinished(shelf)
    assert processes_marked(RUN_VARIABLE, str(folder))
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=120)
    assert run.returncode == 130
    record = json.loads(out)
    assert (record["outcome"], record["results"][0]["outcome"]) == ("interrupted", "interrupted")
    assert not processes_marked(RUN_VARIABLE, str(folder))
    _wait_for(lambda: _stress_tests(shelf) == [])  # the kernel there hears of it when the connection is down
    assert shelf.events("playbook_finished")[-1].evidence["outcome"] == "interrupted"


def test_a_run_that_is_killed_ends_here_and_on_the_duck(shelf: Shelf) -> None:
    command = shelf.command("playbook", "run", "burn-in", "--set", "seconds=600", "--set", "mib=64", "--json")
    run = subprocess.Popen(["ip", "netns", "exec", shelf.net.host, *command], stdout=subprocess.PIPE)
    _wait_for(lambda: _stress_tests(shelf) != [])
    folder = _unfinished(shelf)
    run.kill()
    run.communicate(timeout=120)
    _wait_for(lambda: _stress_tests(shelf) == [])
    _wait_for(lambda: not processes_marked(RUN_VARIABLE, str(folder)))  # ssh keeps its connection for half a minute
    assert _unfinished(shelf) == folder  # it is listed, and what it did can be read


def _unfinished(shelf: Shelf) -> Path:
    """The folder of the run that is under way, or was killed."""
    kept = json.loads(shelf.duckctl("playbook", "log", "--json").stdout)
    (name,) = [one["run"] for one in kept if one["outcome"] == "unfinished"]
    return shelf.state / "playbooks" / name


def _stress_tests(shelf: Shelf) -> list[int]:
    """Of this box: its network is its own."""
    found = []
    there = Path(f"/proc/{shelf.box.pid}/ns/net").readlink()
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "comm").read_text() == "stressapptest\n" and (entry / "ns/net").readlink() == there:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
