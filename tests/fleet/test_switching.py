"""Switching off over a real ssh server: it happens on the duck, and can never happen on this host."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from duckfleet.fleet.lab.ownership import boot_id
from duckfleet.fleet.switching import guarded, is_own_address
from tests.fleet.network import Network, is_possible
from tests.fleet.ssh_box import OTHER_BOOT, ssh_box

needs_root = pytest.mark.skipif(not is_possible(), reason="network and mount namespaces need root")

SWITCH = """
import json, sys
from pathlib import Path
from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.switching import Switch
from duckfleet.inventory.site import Domain, Duck, PowerSource, Site
from duckfleet.inventory.store import Store
state, action, by, power = sys.argv[1:]
duck = Duck("00:e0:4c:00:00:01", "ann", "10.21.1.101", "d1", power=power)
domain = Domain("d1", "x", "10.21.1.1", 24, ("10.21.1.101",), "10.21.1.255", 1500, 9, 7021, 7022)
sources = (PowerSource("wol", "wol"), PowerSource("plug", "command", off="echo off {name}", cycle="echo cycle {name}"))
store = Store("sqlite:///" + state + "/fleet.db")
site = Site("s", Path("s"), (domain,), (duck,), sources)
(result,) = Switch(site, store, None, Path(state) / "keys").switch([duck], action, by=by)
print(json.dumps([result.ok, result.detail, [e.kind for e in store.events()]]))
"""


def switch(net: Network, state: Path, action: str, by: str = "auto", power: str = "wol") -> tuple[bool, str, list[str]]:
    done = net.python(SWITCH, str(state), action, by, power)
    assert done.returncode == 0, done.stderr
    ok, detail, kinds = json.loads(done.stdout)
    return ok, detail, kinds


@needs_root
@pytest.mark.parametrize(
    ("action", "command", "event"), [("off", "poweroff", "power_cut"), ("reboot", "reboot", "reboot_sent")]
)
def test_another_kernel_is_told_to_go_down(net: Network, state: Path, action: str, command: str, event: str) -> None:
    with ssh_box(net, state, OTHER_BOOT) as box:
        assert switch(net, state, action) == (True, f"told to {command} by ssh", [event])
        assert (box / "mark").read_text().strip().endswith(command)


@needs_root
@pytest.mark.parametrize("action", ["off", "reboot"])
def test_this_hosts_own_kernel_is_never_told_to(net: Network, state: Path, action: str) -> None:
    with ssh_box(net, state, "") as box:
        ok, detail, kinds = switch(net, state, action, by="ssh")
        assert not ok
        assert "this host's own kernel" in detail
        assert kinds == [f"{action}_failed"]
        assert not (box / "mark").exists()


@needs_root
def test_a_box_with_another_host_key_is_refused_and_a_plug_still_helps(net: Network, state: Path) -> None:
    with ssh_box(net, state, OTHER_BOOT) as box:
        assert switch(net, state, "off")[0]
        (box / "mark").unlink()
    shutil.rmtree(state / "box")
    with ssh_box(net, state, OTHER_BOOT) as box:
        ok, detail, _ = switch(net, state, "off")
        assert not ok
        assert "another host key" in detail
        assert "wake-on-LAN can only start it" in detail
        assert switch(net, state, "off", power="plug")[:2] == (True, "its power source [plug] did it")
        assert not (box / "mark").exists()


@needs_root
def test_a_silent_duck_is_named_with_what_was_tried(net: Network, state: Path) -> None:
    ok, detail, _ = switch(net, state, "off")
    assert not ok
    assert "duck ann: ssh to 10.21.1.101" in detail
    assert switch(net, state, "reboot", power="plug")[0]


def test_the_guard_runs_nothing_on_the_kernel_that_it_names(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for identity, happens in ((boot_id(), False), (OTHER_BOOT, True)):
        subprocess.run(["sh", "-c", guarded(f"touch {mark}", identity)])
        assert mark.exists() is happens


def test_own_addresses_are_recognised() -> None:
    assert is_own_address("127.21.1.101")
    assert not is_own_address("10.21.1.101")
