"""Observations over a real ssh server: the box's own tools, in bounded time; what is not there says so."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from duckfleet.fleet.diagnosis import look_from_texts
from tests.fleet.network import Network, is_possible
from tests.fleet.ssh_box import OTHER_BOOT, ssh_box

pytestmark = pytest.mark.skipif(not is_possible(), reason="network and mount namespaces need root")

COLLECT = """
import json, sys
from pathlib import Path
from duckfleet.fleet import ssh_texts
from duckfleet.inventory.site import Duck
state, mac, budget_s, extra = sys.argv[1:]
ssh_texts.COMMANDS.update(json.loads(extra))
ssh_texts.COMMAND_TIMEOUT_S = 3.0
duck = Duck(mac, "ann", "10.21.1.101", "d1")
try:
    print(json.dumps(ssh_texts.collect(duck, Path(state) / "keys", budget_s=float(budget_s))))
except Exception as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}))
"""


def collect(net: Network, state: Path, mac: str, budget_s: float = 30.0, **extra: str) -> dict[str, str]:
    done = net.python(COLLECT, str(state), mac, str(budget_s), json.dumps(extra))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def far_mac(net: Network) -> str:
    from tests.fleet.network import run_in

    segment = net.segments[0]
    return run_in(segment.namespace, "cat", f"/sys/class/net/{segment.far_interface}/address").stdout.strip()


def test_texts_of_a_box_are_read_and_tools_that_are_missing_are_unknown(net: Network, state: Path) -> None:
    with ssh_box(net, state, OTHER_BOOT):
        texts = collect(net, state, far_mac(net))
    look = look_from_texts(texts)
    assert look.meminfo.value is not None and look.meminfo.value.total_kib > 100_000
    assert look.storage.value is not None
    assert look.interfaces.value is not None
    # Whatever this machine lacks is said in words, and becomes unknown with them.
    for observed in look.observations():
        assert observed.value is not None or observed.unknown


def test_commands_that_hang_or_never_stop_talking_are_bounded(net: Network, state: Path) -> None:
    began = time.monotonic()
    with ssh_box(net, state, OTHER_BOOT):
        odd = {"a.txt": "echo begun; sleep 30", "b.txt": "yes", "c.txt": "exit 7", "d.txt": "no-such"}
        texts = collect(net, state, far_mac(net), **odd)
    assert time.monotonic() - began < 60
    assert texts["a.txt"] == "probe: timed out" and texts["c.txt"] == ""
    assert len(texts["b.txt"]) < 200_000
    assert "not found" in texts["d.txt"]
    assert "MemTotal" in texts["meminfo.txt"]


def test_the_whole_has_a_budget(net: Network, state: Path) -> None:
    with ssh_box(net, state, OTHER_BOOT):
        texts = collect(net, state, far_mac(net), 0.0)
    assert set(texts.values()) == {"probe: the time was up before its turn"}


def test_another_host_key_and_a_silent_box_are_refused_by_name(net: Network, state: Path) -> None:
    import shutil

    mac = far_mac(net)
    with ssh_box(net, state, OTHER_BOOT):
        assert "MemTotal" in collect(net, state, mac)["meminfo.txt"]
    shutil.rmtree(state / "box")
    with ssh_box(net, state, OTHER_BOOT):
        said = collect(net, state, mac)
    assert said["error"] == "DuckUnreachable" and "another host key" in said["text"]
    said = collect(net, state, mac)
    assert said["error"] == "DuckUnreachable" and "duck ann" in said["text"]


PIN = """
import sys
from pathlib import Path
from duckfleet.fleet.shell import DuckShell
from duckfleet.inventory.site import Duck
state, host_key = sys.argv[1:]
duck = Duck("00:e0:4c:00:00:01", "ann", "10.21.1.101", "d1")
try:
    with DuckShell(duck, Path(state) / "keys", host_key=host_key) as shell:
        print(shell.run("echo well").strip())
except Exception as error:
    print(error)
"""


def host_key(state: Path) -> str:
    import subprocess

    path = state / "box/host_key"
    shown = subprocess.run(["dropbearkey", "-y", "-f", path], check=True, capture_output=True, text=True).stdout
    return next(" ".join(line.split()[:2]) for line in shown.splitlines() if line.startswith("ssh-"))


def test_a_host_key_that_the_daemon_vouches_for_replaces_the_one_pinned(net: Network, state: Path) -> None:
    import shutil

    for started in ("first", "anew"):
        shutil.rmtree(state / "box", ignore_errors=True)
        with ssh_box(net, state, OTHER_BOOT):
            key = host_key(state)
            assert net.python(PIN, str(state), key).stdout == "well\n", started
            assert net.python(PIN, str(state), "").stdout == "well\n", started  # it is the pinned one now
    with ssh_box_again(net, state):
        assert "another host key" in net.python(PIN, str(state), key).stdout  # vouched for another: refused
        assert "another host key" in net.python(PIN, str(state), "rubbish").stdout
    known = state / "keys/known_hosts"
    assert len(known.read_text().splitlines()) == 1 and known.stat().st_mode & 0o777 == 0o600


def ssh_box_again(net: Network, state: Path):
    import shutil

    shutil.rmtree(state / "box")
    return ssh_box(net, state, OTHER_BOOT)


def test_a_box_whose_daemon_is_silent_is_asked_by_ssh(net: Network, state: Path) -> None:
    """Its tools are read, and that they answer says what is wrong: the box is there, its daemon is not."""
    from contextlib import closing

    from duckfleet.fleet import lifecycle
    from duckfleet.inventory.sitefile import load_site
    from duckfleet.inventory.store import Store

    segment = net.segments[0]
    site = state / "duckfleet.toml"
    site.write_text(
        f'[[domains]]\nname = "d1"\ninterface = "{segment.interface}"\nhost_address = "10.21.1.1"\n'
        f'nodes = "10.21.1.101"\n\n[[ducks]]\nmac = "{far_mac(net)}"\naddress = "10.21.1.101"\nname = "ann"\n'
    )
    (duck,) = load_site(site).ducks
    with closing(Store(f"sqlite:///{state / 'fleet.db'}")) as store:
        store.transition(duck, "answered", {}, lifecycle.next_state)
    duckctl = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(state), "--site", str(site)]
    with ssh_box(net, state, OTHER_BOOT):
        (probed,) = json.loads(net.on_host(*duckctl, "probe", "--ssh", "--json").stdout)
    assert probed["verdict"] == "unknown" and "ann" in probed["reasons"][0]
    with closing(Store(f"sqlite:///{state / 'fleet.db'}")) as store:
        (run,) = store.probes(duck.mac)
        assert store.ducks()[duck.mac].evidence["ssh"] == "ok"
    assert run.outcome == "ok" and "MemTotal" in run.report["texts"]["meminfo.txt"]
    said = json.loads(net.on_host(*duckctl, "explain", "ann", "--json").stdout)
    assert said["findings"][0]["code"] == "daemon_gone" and said["top_cause"] == "duckd_crashed"
