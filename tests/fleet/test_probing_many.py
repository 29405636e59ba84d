"""Probing 32 ducks at once: some hang, some close, some answer rubbish; the rest are well, and it is seen to go on."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab.processes import lab_status
from duckfleet.fleet.probing import ProbeOptions, probe_all
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.site import Duck
from duckfleet.runtime.wire import ControlHeader, ControlType, HelloReply

StartLab = Callable[..., FleetContext]
NUM_DUCKS = 32


def frame(kind: int, payload: bytes) -> bytes:
    return ControlHeader(type=kind, request_id=0, length=len(payload)).pack() + payload


HELLO = frame(ControlType.HELLO_REPLY, bytes(HelloReply.num_bytes()))
IMPOSTORS = {
    "closes": b"",
    "speaks http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "says hello without knowing the secret": HELLO,
    "announces too much": frame(ControlType.HELLO_REPLY, b"")[:-4] + b"\xff\xff\xff\xff",
    "sends noise": os.urandom(4096),
}


@contextlib.contextmanager
def impostor(address: str, port: int, answer: bytes) -> Iterator[None]:
    """Listens where a duck should, answers whatever comes with this, and closes."""
    with socket.create_server((address, port)) as listener:
        listener.settimeout(0.1)
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError, OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(5)
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(10)


@pytest.fixture
def many(start_lab: StartLab) -> FleetContext:
    """32 process ducks, all up."""
    fleet = start_lab(NUM_DUCKS)
    woken = Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True)
    assert all(result.ok for result in woken), [result for result in woken if not result.ok]
    return fleet


def pid_of(fleet: FleetContext, duck: Duck) -> int:
    status = lab_status(fleet.lab_dir)
    assert status is not None
    (pid,) = [one.pid for one in status.ducks if one.mac == duck.mac]
    assert pid is not None
    return pid


def test_the_sick_do_not_hold_the_others_up(many: FleetContext) -> None:
    fleet, ducks = many, many.site.ducks
    port = fleet.site.domains[0].control_port
    hanging, dead, *others = ducks[3], ducks[9], *ducks[14 : 14 + len(IMPOSTORS)]
    os.kill(pid_of(fleet, hanging), signal.SIGSTOP)  # its kernel accepts connections, nobody answers
    with contextlib.ExitStack() as stack:
        stack.callback(os.kill, pid_of(fleet, hanging), signal.SIGCONT)
        for duck in (dead, *others):
            os.kill(pid_of(fleet, duck), signal.SIGKILL)
        gone = {duck.mac for duck in (dead, *others)}
        until = time.monotonic() + 30
        while any(one.pid for one in lab_status(fleet.lab_dir).ducks if one.mac in gone):  # type: ignore[union-attr]
            assert time.monotonic() < until
            time.sleep(0.05)
        for duck, answer in zip(others, IMPOSTORS.values(), strict=True):
            stack.enter_context(impostor(duck.address, port, answer))
        told: list[Duck] = []
        results = probe_all(fleet.site, fleet.known_store, fleet.keys, ducks, told.append)

    assert [result.duck for result in results] == list(ducks)
    assert sorted(duck.name for duck in told) == sorted(duck.name for duck in ducks)
    verdicts = {result.duck.mac: result for result in results}
    sick = {hanging.mac, dead.mac, *(duck.mac for duck in others)}
    for mac, result in verdicts.items():
        # Nothing is concluded from a probe that failed; the reason names the duck.
        assert (result.verdict == "unknown") == (mac in sick), result
        assert mac not in sick or result.duck.name in result.reasons[0]
    # The one that hangs did not keep the last of the others waiting.
    assert told[-1].mac not in sick or told.index(hanging) > NUM_DUCKS // 4
    runs = fleet.store.latest_probes()
    assert {mac for mac, run in runs.items() if run.outcome == "unknown"} == sick
    assert all(runs[mac].report["burst"]["from_duck"]["sent"] > 0 for mac in verdicts if mac not in sick)


def test_progress_is_shown_on_a_terminal(many: FleetContext, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "duckfleet.fleet.cli",
        "--state",
        str(many.state_dir),
        "probe",
        "@d1",
        "@d2",
        "--at-once",
        "4",
    ]
    main, side = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=side, stdin=side, env=environment, cwd=tmp_path
    )
    os.close(side)
    shown = b""
    with contextlib.suppress(OSError):  # the far side of a terminal ends with EIO
        while piece := os.read(main, 65536):
            shown += piece
    os.close(main)
    assert process.wait(60) == 0
    counts = {int(count) for count in re.findall(rb"(\d+) of 16", shown)}
    assert b"probing 16 ducks" in shown and len(counts) > 2 and 16 in counts


def test_a_duck_of_this_host_is_never_stressed(start_lab: StartLab) -> None:
    """Its memory is this machine's, and it is not the only one that would take it all."""
    fleet = start_lab(1)
    assert all(one.ok for one in Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True))
    options = ProbeOptions(seconds=900)
    (result,) = probe_all(fleet.site, fleet.known_store, fleet.keys, fleet.site.ducks, options=options)
    assert result.verdict == "healthy" and result.took_s < 300
    (run,) = fleet.store.probes(fleet.site.ducks[0].mac)
    assert "memory_test" not in run.report and "kernels" not in run.report["measured"]
