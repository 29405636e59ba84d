"""The power relay of a process lab: hears magic packets, and switches ducks (`duckd` processes) on.

Run as `python -m duckfleet.fleet.lab.relay` by `lab up`. Single-threaded and asleep unless something happens. A duck
dies with its relay, as boxes do when the power strip is pulled: the kernel sees to it (PR_SET_PDEATHSIG), so that
even `kill -9` of the relay leaves no daemon behind.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.lab import offspring
from duckfleet.fleet.power import magic


@dataclass(frozen=True, slots=True)
class RelayDuck:
    """A duck behind the relay: which packet starts it, and how."""

    mac: str
    name: str
    command: tuple[str, ...]
    secure_on: str = ""


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """What `lab up` tells the relay, as JSON in the lab's folder."""

    broadcast: str
    wol_port: int
    ducks: tuple[RelayDuck, ...]

    @classmethod
    def load(cls, path: Path) -> RelayConfig:
        value = json.loads(path.read_text())
        ducks = tuple(
            RelayDuck(duck["mac"], duck["name"], tuple(duck["command"]), duck["secure_on"]) for duck in value["ducks"]
        )
        return cls(value["broadcast"], value["wol_port"], ducks)


class Relay:
    """Sockets, children and their records in `folder`."""

    def __init__(self, folder: Path, config: RelayConfig) -> None:
        self.folder = folder
        self.ducks = {duck.mac: duck for duck in config.ducks}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind((config.broadcast, config.wol_port))
        self.socket.setblocking(False)
        self.stopping = False

    def run(self) -> None:
        """Until SIGTERM; then switch everything off."""
        wakeup_out, wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(wakeup_out, selectors.EVENT_READ)
            print("ready", flush=True)
            while not self.stopping:
                for key, _ in selector.select():
                    if key.fileobj is self.socket:
                        self._receive()
                    else:
                        os.read(wakeup_out, 4096)
                self._reap()
        self._switch_all_off()

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _receive(self) -> None:
        try:
            payload, sender = self.socket.recvfrom(2048)
        except BlockingIOError:
            return
        found = magic.find(payload)
        duck = self.ducks.get(found[0]) if found else None
        if found is None or duck is None:
            return  # not for us: other labs and other machines wake theirs here too
        if duck.secure_on and found[1] != duck.secure_on:
            self._say(f"{duck.name}: magic packet from {sender[0]} with a wrong SecureOn password")
        elif duck.mac in self.running:
            self._say(f"{duck.name}: magic packet from {sender[0]}, but it is running")
        else:
            self._say(f"{duck.name}: magic packet from {sender[0]}, starting")
            self._start(duck)

    def _start(self, duck: RelayDuck) -> None:
        try:
            self.running[duck.mac] = offspring.start(duck.command, self.folder, duck.name)
        except OSError as error:
            self._say(f"{duck.name}: cannot be started: {error}")

    def _reap(self) -> None:
        for mac, child in list(self.running.items()):
            code = child.poll()
            if code is not None:
                self._say(f"{self.ducks[mac].name}: is off (ended with {code})")
                del self.running[mac]
                offspring.forget(self.folder, self.ducks[mac].name)

    def _switch_all_off(self) -> None:
        for child in self.running.values():
            child.terminate()
        until = time.monotonic() + 2.0
        for child in self.running.values():
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._reap()
        self._say("the relay is off")

    def _say(self, text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def main() -> None:
    folder = Path(sys.argv[1])
    Relay(folder, RelayConfig.load(folder / "relay.json")).run()


if __name__ == "__main__":
    main()
