"""Real duckd processes on loopback addresses, for tests: started, found ready, filled with chunks, ended."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.control import ControlClient, duckd_path
from duckfleet.runtime.wire import FleetKeys

LOOPBACK_BROADCAST = "127.255.255.255"
_READY_S = 30.0


def free_port(address: str) -> int:
    """A port that nobody has bound for UDP or TCP on any loopback address a moment ago."""
    for _ in range(100):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            udp.bind(("0.0.0.0", 0))
            port: int = udp.getsockname()[1]
            with contextlib.suppress(OSError):
                tcp.bind((address, port))
                return port
    raise RuntimeError("no free port")


@dataclass
class Duck:
    """One duckd. `prefix` is put before its command line (to enter a network namespace, say)."""

    name: str
    address: str
    broadcast: str
    control_port: int
    data_port: int
    key_dir: Path | None
    log: Path
    prefix: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        command = [*self.prefix, str(duckd_path()), "--bind", self.address, "--broadcast", self.broadcast]
        command += ["--control-port", str(self.control_port), "--data-port", str(self.data_port)]
        command += ["--threads", "1", "--spin-us", "0"]
        if self.key_dir is None:
            command.append("--no-auth")
        else:
            command += ["--fleet-key", str(self.key_dir / "fleet.pub")]
            command += ["--enrolment", str(self.key_dir / "enrolment.secret")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while b"ready" not in self.log.read_bytes():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not become ready:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.01)

    def suspend(self) -> None:
        """SIGSTOP; every thread stands still when this returns."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """At once, and gone when this returns."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class DuckFlock:
    """Ducks on `num_domains` domains of loopback, with keys of their own unless `auth` is off. A context manager."""

    def __init__(
        self, directory: Path, ducks_per_domain: Sequence[int], *, auth: bool = True, mtu: int = 65536
    ) -> None:
        self.keys = FleetKeys.generate() if auth else None
        self._directory = directory
        key_dir = directory / "keys" if self.keys else None
        if self.keys and key_dir:
            self.keys.save(key_dir)
        self.ducks: list[Duck] = []
        self.domains: list[RosterDomain] = []
        self._domain_of: list[str] = []
        for d, count in enumerate(ducks_per_domain, start=1):
            self.domains.append(RosterDomain(f"d{d}", f"127.23.{d}.1", LOOPBACK_BROADCAST, mtu))
            data_port = free_port(f"127.23.{d}.1")
            for i in range(count):
                address = f"127.23.{d}.{101 + i}"
                log = directory / f"d{d}-{i + 1:02}.log"
                self.ducks.append(
                    Duck(f"d{d}-{i + 1:02}", address, LOOPBACK_BROADCAST, free_port(address), data_port, key_dir, log)
                )
                self._domain_of.append(f"d{d}")

    def __enter__(self) -> Self:
        try:
            for duck in self.ducks:
                duck.start()
            for duck in self.ducks:
                duck.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for duck in self.ducks:
            duck.kill()

    def roster(self, ranks: Sequence[int] | None = None, generation: int = 1) -> Roster:
        """Ducks (by index) in the order of their ranks; all of them by default."""
        chosen = range(len(self.ducks)) if ranks is None else ranks
        entries = tuple(
            RosterEntry(
                rank=rank,
                duck=self.ducks[i].name,
                address=self.ducks[i].address,
                domain=self._domain_of[i],
                control_port=self.ducks[i].control_port,
                data_port=self.ducks[i].data_port,
                ram_bytes=1 << 30,
                read_bandwidth_bytes_per_s=1e10,
                num_threads=1,
                evidence_at_s=0.0,
            )
            for rank, i in enumerate(chosen)
        )
        return Roster(generation, 0.0, tuple(self.domains), entries)

    @contextlib.contextmanager
    def control(self, entry: RosterEntry) -> Iterator[ControlClient]:
        with ControlClient(entry.address, entry.control_port, self.keys, 20.0, name=entry.duck) as client:
            yield client

    def place(self, roster: Roster, plan: ShardPlan, chunks: dict[str, bytes]) -> None:
        """Give every duck the chunks of its rank."""
        for entry in roster.entries:
            digests = [plan.chunks[i].digest for i in plan.holders[entry.rank]]
            with self.control(entry) as client:
                for digest, held in zip(digests, client.have(digests), strict=True):
                    if not held:
                        client.put_chunk(digest, chunks[digest])
