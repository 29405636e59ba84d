"""Playbooks that configure, on a Debian duck and on the host: what they place, and that a second run changes nothing.

No systemd runs in the boxes, which the playbooks see and say: units are placed and enabled for its next start.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.doctor import WANTED_RMEM_BYTES
from duckfleet.fleet.trust import make_keys
from duckfleet.runtime.control import duckd_path
from tests.fleet.network import Network, is_possible, network
from tests.fleet.playbooks.conftest import MakeShelf, Shelf
from tests.fleet.playbooks.debian_box import Box, Plan, debian_host, site_file

pytestmark = pytest.mark.skipif(not is_possible(), reason="network and mount namespaces need root")

WANTED = "etc/systemd/system/multi-user.target.wants"
NO_SYSTEMD = "systemd does not run here"


def package(long_uw: int, short_uw: int) -> dict[str, str]:
    """A RAPL package as the kernel shows it."""
    return {
        "name": "package-0\n",
        "enabled": "1\n",
        "constraint_0_name": "long_term\n",
        "constraint_0_power_limit_uw": f"{long_uw}\n",
        "constraint_1_name": "short_term\n",
        "constraint_1_power_limit_uw": f"{short_uw}\n",
    }


DUCK = Plan(
    covered={
        "proc/sys/vm/nr_hugepages": "0\n",
        "sys/devices/system/cpu": {
            "online": "0-1\n",
            "possible": "0-1\n",
            "present": "0-1\n",
            "cpu0": {"cpufreq": {"scaling_governor": "powersave\n"}},
        },
        "sys/class": {
            "net": {},
            "powercap": {
                "intel-rapl": {"intel-rapl:0": package(6_000_000, 25_000_000)},
                "intel-rapl-mmio": {"intel-rapl-mmio:0": package(15_000_000, 15_000_000)},
            },
        },
    },
    prepare=("for card in sys/devices/virtual/net/*; do ln -s /$card sys/class/net/; done",),
)


@pytest.fixture(scope="module")
def shelf(make_shelf: MakeShelf) -> Iterator[Shelf]:
    with make_shelf(DUCK) as made:
        yield made


@pytest.fixture(scope="module")
def duck_runs(shelf: Shelf) -> list[dict[str, Any]]:
    """duck-setup, twice: records."""
    runs = [shelf.run("duck-setup", "ann", "--set", "huge_pages=8", "--set", "threads=1") for _ in range(2)]
    assert [code for code, _ in runs] == [0, 0], runs
    return [record for _, record in runs]


def test_a_second_duck_setup_changes_nothing(duck_runs: list[dict[str, Any]]) -> None:
    (first,), (second,) = (record["results"] for record in duck_runs)
    assert first["outcome"] == "changed" and first["num_changed"] > 8
    assert (second["outcome"], second["num_changed"]) == ("ok", 0)
    assert NO_SYSTEMD in first["detail"] and "no governor" not in first["detail"]


def test_duck_setup_places_duckd_its_keys_and_its_units(shelf: Shelf, duck_runs: list[dict[str, Any]]) -> None:
    box = shelf.box
    assert box.path("usr/local/sbin/duckd").read_bytes() == duckd_path().read_bytes()
    enrolment = box.path("etc/duckfleet/enrolment")
    assert enrolment.read_bytes() == (shelf.state / "keys/enrolment.secret").read_bytes()
    assert enrolment.stat().st_mode & 0o777 == 0o600
    for unit in ("duckd.service", "var-lib-duckfleet.mount", "duckfleet-tune.service"):
        assert box.run("test", "-L", f"/{WANTED}/{unit}").returncode == 0, unit
        said = box.run("systemd-analyze", "verify", f"/etc/systemd/system/{unit}").stderr
        assert not [line for line in said.splitlines() if "duck" in line], said
    assert box.path("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text() == "performance\n"
    assert box.path("proc/sys/vm/nr_hugepages").read_text() == "8\n"


def test_duckd_serves_the_fleet_by_the_unit_that_was_placed(shelf: Shelf, duck_runs: list[dict[str, Any]]) -> None:
    unit = shelf.box.path("etc/systemd/system/duckd.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    with (shelf.state / "duckd.log").open("w") as log:
        duckd = subprocess.Popen(
            shelf.box.inside(*shlex.split(line.removeprefix("ExecStart="))), stderr=log, stdout=log
        )
        try:
            until = time.monotonic() + 60
            while "ready" not in (said := (shelf.state / "duckd.log").read_text()):
                assert duckd.poll() is None and time.monotonic() < until, said
                time.sleep(0.05)
            (probed,) = json.loads(shelf.duckctl("probe", "ann", "--json").stdout)
        finally:
            duckd.terminate()
            duckd.wait()
    assert probed["duck"] == "ann" and probed["verdict"] != "unknown", probed


def test_what_a_run_keeps_holds_no_secret(shelf: Shelf, duck_runs: list[dict[str, Any]]) -> None:
    secret = (shelf.state / "keys/enrolment.secret").read_bytes().strip()
    kept = [path for path in (shelf.state / "playbooks").rglob("*") if path.is_file()]
    assert len(kept) > 50
    assert not [path for path in kept if secret in path.read_bytes()]


def test_power_limits_are_set_once_and_what_the_firmware_locks_is_said(shelf: Shelf) -> None:
    zones = [shelf.box.path(f"sys/class/powercap/{kind}/{kind}:0") for kind in ("intel-rapl", "intel-rapl-mmio")]
    runs = [shelf.run("power-limits", "--set", "watts=15", "--set", "peak_watts=20") for _ in range(2)]
    assert [(code, record["results"][0]["outcome"]) for code, record in runs] == [(0, "changed"), (0, "ok")], runs
    assert runs[1][1]["results"][0]["num_changed"] == 0
    assert "intel-rapl:0 long_term 15 W" in runs[1][1]["results"][0]["detail"]
    for zone in zones:
        limits = [(zone / f"constraint_{number}_power_limit_uw").read_text() for number in (0, 1)]
        assert limits == ["15000000\n", "20000000\n"]
    assert shelf.box.run("test", "-L", f"/{WANTED}/duckfleet-power-limits.service").returncode == 0
    assert "15 W" in shelf.events("power_limits")[-1].evidence["limits"]

    shelf.box.run("mount", "-o", "remount,ro,bind", "/sys/class")
    shelf.box.path("etc/duckfleet/power-limits").write_text("long_term=12\nshort_term=20\n")
    said = shelf.box.run("/usr/local/sbin/duckfleet-power-limits")  # as its unit runs it
    assert said.returncode == 1 and "long_term stays at 15 W: the firmware locks it" in said.stdout


def test_a_check_changes_nothing_and_a_box_without_rapl_says_so(make_shelf: MakeShelf) -> None:
    with make_shelf(Plan(covered={"sys/class": {}})) as shelf:
        code, record = shelf.run("duck-setup", "--check")
        assert (code, record["results"][0]["outcome"]) == (0, "changed"), record
        assert "would be changed" in record["results"][0]["detail"]
        assert not shelf.box.path("etc/duckfleet").exists()
        assert not shelf.events("playbook_passed")
        code, record = shelf.run("power-limits", "--set", "watts=15")
        assert (code, record["results"][0]["outcome"]) == (3, "unsupported"), record
        assert "no RAPL package" in record["results"][0]["detail"]
        assert not shelf.box.path("etc/duckfleet/power-limits").exists()


@dataclass(frozen=True)
class Host:
    """The host as a box of its own, after host-setup ran there twice."""

    box: Box
    interface: str
    records: list[dict[str, Any]]
    command: list[str]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    state = tmp_path_factory.mktemp("state")
    make_keys(state / "keys")
    with network(1) as net:
        site = site_file(net, state)
        interface = net.segments[0].interface
        plan = Plan(boot_id="", covered=_host_files(net, interface))
        with debian_host(net, state, state / "box", plan) as box:
            command = Shelf(net, state, box, site).command()
            run = ("playbook", "run", "host-setup", "--set", "huge_pages=4", "--set", "irq_cpus=1", "--json")
            done = [box.run(*command, *run) for _ in range(2)]
            assert [one.returncode for one in done] == [0, 0], done
            yield Host(box, interface, [json.loads(one.stdout) for one in done], command)


def _host_files(net: Network, interface: str) -> dict[str, Any]:
    """A card with two interrupts, and those of the settings that are the whole kernel's."""
    covered: dict[str, Any] = {
        "proc/sys/vm/nr_hugepages": "0\n",
        "sys/class/net": {interface: {"device": {"msi_irqs": {"41": "msix\n", "42": "msix\n"}}}},
        "proc/irq": {"41": {"smp_affinity_list": "0-1\n"}, "42": {"smp_affinity_list": "0-1\n"}},
    }
    for name in ("rmem_max", "wmem_max", "netdev_max_backlog", "busy_poll"):
        if net.on_host("test", "-e", f"/proc/sys/net/core/{name}").returncode == 0:
            covered[f"proc/sys/net/core/{name}"] = "1\n"
    return covered


def test_a_second_host_setup_changes_nothing(host: Host) -> None:
    (first,), (second,) = (record["results"] for record in host.records)
    assert first["machine"] == "this host" and first["outcome"] == "changed" and first["num_changed"] > 6
    assert (second["outcome"], second["num_changed"]) == ("ok", 0), second
    assert NO_SYSTEMD in second["detail"]
    assert f"{host.interface} has no ring to set" in second["detail"]  # a veth has none


def test_host_setup_sets_the_kernel_and_the_cards(host: Host) -> None:
    box = host.box
    kept = box.path("etc/sysctl.d/60-duckfleet.conf").read_text()
    assert f"net.core.rmem_max = {WANTED_RMEM_BYTES}\n" in kept and "vm.nr_hugepages = 4\n" in kept
    assert box.path("proc/sys/vm/nr_hugepages").read_text().strip() == "4"
    for irq in (41, 42):
        assert box.path(f"proc/irq/{irq}/smp_affinity_list").read_text() == "1\n"
    assert box.run("test", "-L", f"/{WANTED}/duckfleet-cards.service").returncode == 0


def test_host_setup_places_the_units_that_the_product_prints(host: Host) -> None:
    box = host.box
    printed = box.run(*host.command, "report", "install", "--print").stdout
    folder = box.path("etc/systemd/system")
    (timer,) = folder.glob("duckfleet-report-*.timer")
    for unit in (timer, timer.with_suffix(".service")):
        assert unit.read_text().strip() in printed
    assert box.run("test", "-L", f"/etc/systemd/system/timers.target.wants/{timer.name}").returncode == 0
    assert box.run("test", "-L", f"/{WANTED}/duckfleet.service").returncode == 0
    assert "serve" in (folder / "duckfleet.service").read_text()
    assert box.run(*host.command, "report", "uninstall").stdout == "no more reports at night\n"
    assert not list(folder.glob("duckfleet-report-*"))


def test_nothing_reached_this_machine(host: Host, duck_runs: list[dict[str, Any]]) -> None:
    for path in ("/usr/local/sbin/duckfleet-cards", "/usr/local/sbin/duckd", "/etc/duckfleet/tune"):
        assert not Path(path).exists(), path
    assert not Path("/etc/sysctl.d/60-duckfleet.conf").exists()


def test_what_cannot_be_started_is_refused_before_anything_runs(shelf: Shelf, tmp_path: Path) -> None:
    elsewhere = ("--state", str(tmp_path / "no keys"))
    for arguments, words in (
        (("playbook", "run", "host-setup", "ann"), "takes no ducks"),
        (("playbook", "run", "power-limits"), "needs --set watts="),
        ((*elsewhere, "playbook", "run", "firmware"), "`duckctl init`"),
    ):
        done = shelf.duckctl(*arguments)
        assert done.returncode == 2 and words in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "no keys/playbooks").exists()
