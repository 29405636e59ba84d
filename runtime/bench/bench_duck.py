"""One real duck on a loopback address, for benchmarks: started, filled, asked, ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.control import ControlClient, duckd_path
from duckfleet.runtime.wire import FleetKeys

ADDRESS, HOST_ADDRESS, BROADCAST = "127.29.1.101", "127.29.1.1", "127.255.255.255"
_READY_S = 20.0
_LOOPBACK_MTU = 65536


@dataclass(frozen=True, slots=True)
class BenchDuck:
    """Where the duck is. `num_threads` threads compute, each on a core of its own where the machine has so many."""

    keys: FleetKeys | None
    roster: Roster
    num_threads: int

    @property
    def client(self) -> ControlClient:
        entry = self.roster.entries[0]
        return ControlClient(entry.address, entry.control_port, self.keys, name=entry.duck)

    def put(self, chunks: Iterable[tuple[str, bytes]]) -> None:
        """(digest, bytes) of each chunk."""
        with self.client as client:
            for digest, data in chunks:
                client.put_chunk(digest, data)


@contextmanager
def bench_duck(num_threads: int = 1, *, auth: bool = True, spin_us: int = 200) -> Iterator[BenchDuck]:
    """A duckd on the last `num_threads` cores of this machine. Raises `MachineError` when it does not come up."""
    cores = sorted(os.sched_getaffinity(0))[-num_threads:]
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-") as name:
        folder = Path(name)
        keys = FleetKeys.generate() if auth else None
        control_port, data_port = _free_port(), _free_port()
        command = [str(duckd_path()), "--bind", ADDRESS, "--broadcast", BROADCAST]
        command += ["--control-port", str(control_port), "--data-port", str(data_port)]
        command += ["--threads", str(num_threads), "--spin-us", str(spin_us)]
        if keys is None:
            command.append("--no-auth")
        else:
            keys.save(folder)
            command += ["--fleet-key", str(folder / "fleet.pub"), "--enrolment", str(folder / "enrolment.secret")]
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        try:
            _wait_ready(process, log)
            entry = RosterEntry(
                0, "bench", ADDRESS, "bench", control_port, data_port, 1 << 34, 1e10, num_threads, time.time()
            )
            domain = RosterDomain("bench", HOST_ADDRESS, BROADCAST, _LOOPBACK_MTU)
            yield BenchDuck(keys, Roster(1, time.time(), (domain,), (entry,)), num_threads)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while b"ready" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise MachineError(f"the benchmark's duck did not start: {log.read_text(errors='replace').strip()}")
        time.sleep(0.01)


def _free_port() -> int:
    """A port that is free for TCP and UDP at the duck's address a moment from now."""
    for _ in range(50):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            udp.bind(("0.0.0.0", 0))
            port: int = udp.getsockname()[1]
            with contextlib.suppress(OSError):
                tcp.bind((ADDRESS, port))
                return port
    raise MachineError("no free port for the benchmark's duck")
