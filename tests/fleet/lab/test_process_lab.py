"""Process ducks are really switched on by magic packets, and nothing of a lab is left behind however it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.ownership import ProcessId, processes_of_lab
from duckfleet.fleet.lab.processes import lab_down, lab_status
from duckfleet.fleet.power import magic
from duckfleet.fleet.power.wol import WakeOnLan
from duckfleet.fleet.reach import identify
from duckfleet.fleet.switching import Switch
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import MachineError, OperatorError

StartLab = Callable[..., FleetContext]


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def running(fleet: FleetContext) -> list[str]:
    status = lab_status(fleet.lab_dir)
    assert status is not None
    return [duck.name for duck in status.ducks if duck.pid is not None]


def wake(fleet: FleetContext, *names: str) -> None:
    results = Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.select(names), wait=True)
    assert all(result.ok for result in results), results


def test_a_duck_is_off_until_its_own_magic_packet_comes(start_lab: StartLab) -> None:
    fleet = start_lab(3)
    assert running(fleet) == []
    with pytest.raises(MachineError, match="duck1102"):
        identify(fleet.site, fleet.site.ducks[1], fleet.keys)
    wake(fleet, "duck1102")
    assert running(fleet) == ["duck1102"]
    assert identify(fleet.site, fleet.site.ducks[1], fleet.keys).num_threads == 1
    states = {row.name: row.state for row in fleet.store.ducks().values()}
    assert states == {"duck1101": "unknown", "duck1102": "up", "duck1103": "unknown"}
    kinds = [event.kind for event in fleet.store.events([fleet.site.ducks[1].mac])]
    assert kinds == ["wake_sent", "answered"]


def test_a_packet_that_is_not_quite_right_wakes_nobody(start_lab: StartLab) -> None:
    import socket

    fleet = start_lab(1)
    (duck,), domain = fleet.site.ducks, fleet.site.domains[0]
    good = magic.build(duck.mac)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.bind((domain.host_address, 0))
        for payload in (
            good[:-1],
            good[6:],
            b"GET / HTTP/1.1\r\n\r\n",
            b"",
            os.urandom(1400),
            magic.build("02:00:00:00:00:01"),
        ):
            sender.sendto(payload, (domain.broadcast, domain.wol_port))
        sender.sendto(b"x" + good, (domain.broadcast, domain.wol_port))  # a card finds it anywhere in the payload
    wait_for(lambda: running(fleet) == [duck.name])
    log = (fleet.lab_dir / "relay.log").read_text()
    assert log.count("magic packet") == 1


def test_off_ends_the_daemon_and_the_next_packet_starts_it_again(start_lab: StartLab) -> None:
    fleet = start_lab(2)
    wake(fleet)
    first = identify(fleet.site, fleet.site.ducks[0], fleet.keys).instance
    results = Switch(fleet.site, fleet.store, fleet.keys, fleet.keys_dir).switch(fleet.site.select(["duck1101"]), "off")
    assert results[0].ok, results
    wait_for(lambda: running(fleet) == ["duck1102"])
    assert fleet.store.ducks()[fleet.site.ducks[0].mac].state == "off"
    wake(fleet, "duck1101")
    assert identify(fleet.site, fleet.site.ducks[0], fleet.keys).instance != first


def test_reboot_ends_and_starts_it(start_lab: StartLab) -> None:
    fleet = start_lab(1)
    wake(fleet)
    first = identify(fleet.site, fleet.site.ducks[0], fleet.keys).instance
    switch = Switch(fleet.site, fleet.store, fleet.keys, fleet.keys_dir)
    wait_for(lambda: switch.switch(fleet.site.ducks, "reboot")[0].ok)
    wake(fleet)
    assert identify(fleet.site, fleet.site.ducks[0], fleet.keys).instance != first


def test_two_labs_do_not_wake_each_others_ducks(start_lab: StartLab) -> None:
    one, other = start_lab(2), start_lab(2)
    wake(one)
    assert running(one) == ["duck1101", "duck1102"]
    assert running(other) == []
    # Even on the other lab's port, the MACs are not its own.
    domain = other.site.domains[0]
    WakeOnLan().on(one.site.ducks[0], domain)
    wake(other, "duck1102")
    assert running(other) == ["duck1102"]


def test_a_duck_of_a_hundred_packets_is_started_once(start_lab: StartLab) -> None:
    fleet = start_lab(1)
    WakeOnLan(repeats=100).on(fleet.site.ducks[0], fleet.site.domains[0])
    wait_for(lambda: len(running(fleet)) == 1)
    wake(fleet)
    log = (fleet.lab_dir / "relay.log").read_text()
    assert log.count(", starting") == 1


def survivors(fleet: FleetContext) -> list[ProcessId]:
    return processes_of_lab(fleet.lab_dir)


@pytest.mark.parametrize("crash", ["none", "relay killed", "duck killed", "records lost", "everything lost"])
def test_down_leaves_no_process_behind(start_lab: StartLab, crash: str) -> None:
    fleet = start_lab(3)
    wake(fleet)
    found = survivors(fleet)
    assert len(found) == 4
    relay = ProcessId.load(fleet.lab_dir / "relay.pid.json")
    assert relay is not None
    if crash == "relay killed":
        os.kill(relay.pid, signal.SIGKILL)
    elif crash == "duck killed":
        os.kill(next(process.pid for process in found if process != relay), signal.SIGKILL)
    elif crash == "records lost":
        for record in fleet.lab_dir.glob("*.pid.json"):
            record.unlink()
    elif crash == "everything lost":
        for file in fleet.lab_dir.glob("*.json"):
            file.write_text("{")
    lab_down(fleet.lab_dir)
    assert survivors(fleet) == []
    assert [process for process in found if process.is_alive()] == []
    assert not fleet.lab_dir.exists()


def test_a_pulled_plug_takes_the_ducks_with_it(start_lab: StartLab) -> None:
    fleet = start_lab(2)
    wake(fleet)
    relay = ProcessId.load(fleet.lab_dir / "relay.pid.json")
    assert relay is not None
    os.kill(relay.pid, signal.SIGKILL)
    wait_for(lambda: survivors(fleet) == [])


def test_a_record_of_a_stranger_is_not_believed(start_lab: StartLab) -> None:
    fleet = start_lab(1)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        process = ProcessId.of(stranger.pid)
        assert process is not None
        record = {"pid": process.pid, "start_ticks": process.start_ticks - 1, "boot_id": process.boot_id}
        (fleet.lab_dir / "duck1101.pid.json").write_text(json.dumps(record))
        lab_down(fleet.lab_dir)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_second_lab_in_the_same_place_is_refused_unless_the_first_crashed(start_lab: StartLab) -> None:
    from duckfleet.fleet.lab.plan import plan_lab
    from duckfleet.runtime.control import duckd_path

    fleet = start_lab(1)
    plan = processes.find_free_ports(plan_lab(processes.new_lab_id(), 2))
    options = processes.DaemonOptions(duckd_path())
    with pytest.raises(OperatorError, match="lab down"):
        processes.lab_up(fleet.lab_dir, plan, options)
    relay = ProcessId.load(fleet.lab_dir / "relay.pid.json")
    assert relay is not None
    relay.end(grace_s=0.0)
    processes.lab_up(fleet.lab_dir, plan, options)
    status = lab_status(fleet.lab_dir)
    assert status is not None
    assert status.lab_id == plan.lab_id


def test_a_port_that_is_taken_is_said(start_lab: StartLab) -> None:
    from duckfleet.fleet.lab.plan import plan_lab, with_port
    from duckfleet.runtime.control import duckd_path

    fleet = start_lab(1)
    taken = fleet.site.domains[0].wol_port
    assert not processes.ports_are_free(with_port(plan_lab("abcd", 1), taken))
    free = processes.find_free_ports(plan_lab("abcd", 1))
    assert free.base_port != taken
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as blocker:  # without SO_REUSEADDR: nobody shares it
        blocker.bind((free.domains[0].broadcast, free.wol_port))
        with pytest.raises(MachineError, match="Address already in use"):
            processes.lab_up(fleet.state_dir / "other", free, processes.DaemonOptions(duckd_path()))
    assert not (fleet.state_dir / "other").exists()


def test_a_duck_whose_daemon_ends_at_once_is_lost_with_the_reason_in_its_log(start_lab: StartLab) -> None:
    fleet = start_lab(1)
    (fleet.keys_dir / "enrolment.secret").write_text("rubbish\n")
    # The keys of the host are read before; the daemon reads its own when it starts, and refuses.
    limits = {"waking": 1.0}
    from duckfleet.fleet.lifecycle import TIMEOUT_S
    from duckfleet.runtime.wire import FleetKeys

    waker = Waker(fleet.site, fleet.known_store, FleetKeys.generate(), timeout_s={**TIMEOUT_S, **limits})
    (result,) = waker.wake(fleet.site.ducks, wait=True)
    assert (result.ok, result.state) == (False, "lost")
    assert "is off (ended with" in (fleet.lab_dir / "relay.log").read_text()
    assert "enrolment" in (fleet.lab_dir / "duck1101.log").read_text()
