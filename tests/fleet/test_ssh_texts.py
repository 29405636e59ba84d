"""Observations over a real ssh server: the box's own tools, in bounded time; what is not there says so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckfleet.fleet.diagnosis import look_from_texts
from duckfleet.fleet.trust import make_keys
from tests.fleet.network import Network, is_possible, network
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


@pytest.fixture
def net() -> Iterator[Network]:
    with network(1) as made:
        yield made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path


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
