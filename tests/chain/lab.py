"""A lab of process ducks driven by the real commands, each a process of its own, for tests of the whole chain."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DUCKCTL = Path(sys.executable).parent / "duckctl"
PATIENCE_S = 240.0  # a hang is an error; how long something takes is not a test's business


@dataclass(frozen=True)
class Lab:
    """A state directory with a lab in it."""

    state: Path

    def command(self, *arguments: str) -> list[str]:
        return [str(DUCKCTL), "--state", str(self.state), *arguments]

    def run(self, *arguments: str, expect: int = 0) -> str:
        """Standard output of a duckctl that must end with `expect`."""
        run = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S)
        assert run.returncode == expect, f"duckctl {' '.join(arguments)}: {run.returncode}\n{run.stdout}\n{run.stderr}"
        assert "Traceback" not in run.stderr, run.stderr
        return run.stdout if expect == 0 else run.stdout + run.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def bring_up(self, num_ducks: int, num_domains: int, model: str, *place: str) -> None:
        self.run("lab", "up", "--ducks", str(num_ducks), "--domains", str(num_domains))
        self.run("wake", "--wait")
        self.run("probe")
        self.run("place", model, *place)

    def duckd_pids(self) -> dict[str, int]:
        """By duck, those that are on."""
        return {duck["name"]: duck["pid"] for duck in self.json("lab", "status")["ducks"] if duck["pid"]}

    @contextlib.contextmanager
    def serve(self, *arguments: str) -> Iterator[str]:
        """The base URL of a server that runs until the end of the block and must then end well on SIGTERM."""
        log = self.state / "serve.log"
        with log.open("wb") as out:
            process = subprocess.Popen(self.command("serve", "--port", "0", *arguments), stdout=out, stderr=out)
        try:
            yield self._wait_for_url(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert code in (0, 128 + signal.SIGTERM), f"the server ended with {code}:\n{log.read_text()}"

    def _wait_for_url(self, process: subprocess.Popen[bytes], log: Path) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
                return found.group(0)
            assert process.poll() is None, f"the server ended early:\n{log.read_text()}"
            time.sleep(0.05)
        raise AssertionError(f"the server never said where it is:\n{log.read_text()}")


@contextlib.contextmanager
def lab(state: Path) -> Iterator[Lab]:
    made = Lab(state)
    try:
        yield made
    finally:
        made.run("lab", "down")
        assert not processes_of(state), "the lab left processes behind"


def processes_of(state: Path) -> list[str]:
    """Command lines of living processes that name this state directory, ourselves and our parents left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()):
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(state) in line and "pytest" not in line:
                    found.append(line)
    return found
