"""Playbooks on a real Debian box over a real ssh server: firmware, burn-in, shutdown, and who is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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


def test_firmware_is_read_kept_and_compared(shelf: Shelf) -> None:
    code, record = shelf.run("firmware")
    (result,) = record["results"]
    assert (code, result["outcome"], result["machine"]) == (0, "ok", "ann"), result
    assert "N100 box, BIOS 5.26, of 2025-03-14" in result["detail"] and "card veth" in result["detail"]
    (event,) = shelf.events("firmware")
    assert event.mac == shelf.mac and event.evidence["run"] == record["run"]
    assert event.evidence["modules"] == ["DIMM 0 16384 MiB"] and event.evidence["serial"] == "SN-42"
    tables = shelf.state / "box/covers/sys/firmware"
    for name, content in smbios("5.27", [16384, 0]).items():
        (tables / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    _, record = shelf.run("firmware", "@d1")
    assert record["results"][0]["outcome"] == "changed"
    assert "bios_version: 5.26 before, 5.27 now" in record["results"][0]["detail"]


def test_a_run_is_kept_in_a_folder_of_its_own_and_can_be_read_afterwards(shelf: Shelf) -> None:
    _, record = shelf.run("firmware")
    folder = shelf.state / "playbooks" / record["run"]
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = json.loads(shelf.duckctl("playbook", "log", "last", "--json").stdout)
    assert kept["record"] == record
    tasks = [(task["host"], task["task"], task["status"]) for task in kept["tasks"]]
    assert ("ann", "ask whose kernel it is", "ok") in tasks and ("ann", "report the firmware", "ok") in tasks
    shown = shelf.duckctl("playbook", "log", record["run"]).stdout
    assert "ann  read the firmware's own words  ok" in shown
    assert "TASK [duck_guard : refuse this host itself]" in shelf.duckctl("playbook", "log", "last", "--output").stdout
    names = [one["run"] for one in json.loads(shelf.duckctl("playbook", "log", "--json").stdout)]
    assert names == sorted(names) and names[-1] == record["run"]
    finished = shelf.events("playbook_finished")[-1].evidence
    assert finished == {"playbook": "firmware", "run": record["run"], "outcome": "ok", "well": 1, "of": 1}


@pytest.mark.parametrize(
    ("arguments", "result", "code", "words"),
    [
        (("seconds=5", "mib=64"), "passed", 0, "no errors"),
        (("seconds=5", "mib=64", "arguments=--force_errors"), "errors", 3, "wrong results"),
        (("seconds=5", "mib=99999999"), "procedure", 3, "failed to allocate|memalign"),
    ],
)
def test_burn_in_has_three_results(
    shelf: Shelf, arguments: tuple[str, ...], result: str, code: int, words: str
) -> None:
    given = [word for argument in arguments for word in ("--set", argument)]
    assert shelf.run("burn-in", "ann", *given)[0] == code
    event = shelf.events("burn_in")[-1]
    assert event.evidence["result"] == result and event.mac == shelf.mac
    assert any(word in event.evidence["detail"] for word in words.split("|"))
    assert (event.evidence.get("incidents", 0) > 0) == (result == "errors")


def test_burn_in_without_its_program_is_no_fault_of_the_box(make_shelf: MakeShelf) -> None:
    with make_shelf(Plan(prepare=("rm usr/bin/stressapptest",))) as shelf:
        code, record = shelf.run("burn-in", "--set", "seconds=5", "--set", "mib=64")
    (result,) = record["results"]
    assert (code, result["outcome"]) == (3, "procedure") and "duck-setup" in result["detail"]


def test_shutdown_is_done_on_the_duck_and_expected_of_it(shelf: Shelf) -> None:
    code, record = shelf.run("shutdown", "ann")
    assert (code, record["results"][0]["detail"]) == (0, "told to power off")
    _wait_for(lambda: shelf.box.path("run/switched-off").exists())
    (event,) = shelf.events("power_cut")
    assert event.to_state == "off" and event.evidence["run"] == record["run"]


def test_nothing_runs_on_the_hosts_own_kernel(make_shelf: MakeShelf) -> None:
    with make_shelf(Plan(boot_id="")) as shelf:
        for playbook in ("shutdown", "firmware"):
            code, record = shelf.run(playbook)
            (result,) = record["results"]
            assert (code, result["outcome"]) == (3, "failed") and "host's own kernel" in result["detail"]
            assert result["num_changed"] == 0
        time.sleep(2)  # longer than the shutdown waits before it acts
        assert not shelf.box.path("run/switched-off").exists()
        assert not shelf.events("power_cut")


def test_a_duck_at_this_hosts_own_address_takes_no_part(shelf: Shelf, make_shelf: MakeShelf) -> None:
    site = shelf.state / "own.toml"
    site.write_text(shelf.site.read_text().replace('10.21.1.1"', '10.21.1.2"').replace("10.21.1.101", "10.21.1.1"))
    done = shelf.net.on_host(*shelf.command("--site", str(site), "playbook", "run", "shutdown", "--json"))
    (result,) = json.loads(done.stdout)["results"]
    assert (done.returncode, result["outcome"]) == (3, "refused") and "this host's own address" in result["detail"]


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
    (folder,) = [path for path in (shelf.state / "playbooks").iterdir() if not (path / "run.json").exists()]
    assert processes_marked(RUN_VARIABLE, str(folder))
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=120)
    assert run.returncode == 130
    record = json.loads(out)
    assert (record["outcome"], record["results"][0]["outcome"]) == ("interrupted", "not run")
    assert not processes_marked(RUN_VARIABLE, str(folder))
    _wait_for(lambda: _stress_tests(shelf) == [])  # the kernel there hears of it when the connection is down
    assert shelf.events("playbook_finished")[-1].evidence["outcome"] == "interrupted"


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
