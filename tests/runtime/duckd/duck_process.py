"""A real duckd on a loopback address of its own, for tests."""

from __future__ import annotations

import random
import select
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from duckfleet.runtime.control import ControlClient, duckd_path
from duckfleet.runtime.wire import FleetKeys

CONTROL_PORT = 9821
DATA_PORT = 9822
START_S = 30.0
STOP_S = 20.0


def random_address() -> str:
    """Somewhere in 127.22.0.0/16: several runs of these tests may share a machine."""
    rng = random.SystemRandom()
    return f"127.22.{rng.randrange(1, 255)}.{rng.randrange(1, 255)}"


def kept_in(store: Path) -> list[str]:
    """The files of a store, but for what its duck has measured of its own machine."""
    return sorted(path.name for path in store.iterdir() if path.name != "tuning.json")


@dataclass
class DuckProcess:
    """Started by `start`, ended by leaving the context. stderr goes to `log`."""

    directory: Path
    keys: FleetKeys | None = None
    options: tuple[str, ...] = ()
    address: str = ""
    process: subprocess.Popen[str] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / "duckd.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self.stop()
        assert status == 0, f"duckd ended with {status}:\n{self.log_text()}"

    def start(self) -> None:
        """Start and wait until it listens; another address is tried when the first is taken."""
        fixed = bool(self.address)
        for _ in range(8):
            if not fixed:
                self.address = random_address()
            if self._start_once():
                return
            if fixed:
                break
        raise AssertionError(f"duckd does not start:\n{self.log.read_text()}")

    def _start_once(self) -> bool:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else ""
        if line.startswith("ready"):
            return True
        self.stop()
        return False

    def command(self) -> list[str]:
        command = [str(duckd_path()), "--bind", self.address, "--control-port", str(CONTROL_PORT)]
        command += ["--data-port", str(DATA_PORT), "--threads", "1", "--spin-us", "0", *self.options]
        if self.keys is None:
            return [*command, "--no-auth"]
        keys = self.directory / "keys"
        self.keys.save(keys, replace=True)
        return [*command, "--fleet-key", str(keys / "fleet.pub"), "--enrolment", str(keys / "enrolment.secret")]

    def stop(self) -> int:
        """SIGTERM; the exit status. Idempotent."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError("duckd did not end on SIGTERM") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def wait_for_exit(self) -> int:
        """The exit status of a duckd that was told to end."""
        assert self.process is not None
        process, self.process = self.process, None
        try:
            return process.wait(STOP_S)
        finally:
            if process.stdout is not None:
                process.stdout.close()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def control(self, keys: FleetKeys | None = None, timeout_s: float = 20.0) -> ControlClient:
        return ControlClient(self.address, CONTROL_PORT, keys or self.keys, timeout_s, name="testduck")

    def log_text(self) -> str:
        return self.log.read_text()

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


def wait_until(condition: object, timeout_s: float = 20.0) -> None:
    """Until the callable is true; a generous bound, so that a loaded machine is no failure."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)
