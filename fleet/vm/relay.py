"""The power relay of a lab of virtual machines: hears magic packets on the wire and switches machines on.

Run as `python -m duckfleet.fleet.vm.relay FOLDER` inside the lab's namespace. One thread, asleep unless something
happens. A machine dies with its relay (PR_SET_PDEATHSIG), as boxes do when the power strip is pulled. Commands come
by a socket in the folder, one JSON line each, answered by one.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from duckfleet.fleet.lab import offspring
from duckfleet.fleet.power import magic
from duckfleet.fleet.vm import qemu, smbios
from duckfleet.fleet.vm.faults import Condition, cable_commands, check_fault
from duckfleet.fleet.vm.network import listener_port
from duckfleet.fleet.vm.plan import LINK_MBPS, NUM_SLOTS, VmDuck
from duckfleet.inventory.errors import DuckfleetError, MachineError

ETH_P_ALL = 0x0003
SOCKET_FILE = "relay.sock"
MAX_COMMAND_BYTES = 4096
GRACE_S = 3.0


@dataclass
class Machine:
    """A virtual duck and how it is now."""

    duck: VmDuck
    condition: Condition = field(default_factory=Condition)
    process: subprocess.Popen[bytes] | None = None
    powered_at_s: float | None = None
    num_packets: int = 0


class Relay:
    """Sockets, machines and their records in `folder`."""

    def __init__(self, folder: Path, ducks: list[VmDuck]) -> None:
        self.folder = folder
        self.machines = {duck.mac: Machine(duck) for duck in ducks}
        self.by_name = {machine.duck.name: machine for machine in self.machines.values()}
        self.strips = [_listen_on(listener_port(bridge)) for bridge in sorted({duck.bridge for duck in ducks})]
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.bind(str(folder / SOCKET_FILE))
        self.control.listen(8)
        self.stopping = False

    def run(self) -> None:
        """Until SIGTERM; then switch everything off."""
        wakeup_out, wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        with selectors.DefaultSelector() as selector:
            for strip in self.strips:
                selector.register(strip, selectors.EVENT_READ, self._hear)
            selector.register(self.control, selectors.EVENT_READ, self._obey)
            selector.register(wakeup_out, selectors.EVENT_READ, lambda _: os.read(wakeup_out, 4096))
            print("ready", flush=True)
            while not self.stopping:
                for key, _ in selector.select():
                    key.data(key.fileobj)
                self._reap()
        for machine in self.machines.values():
            self._switch_off(machine)
        self._say("the relay is off")

    def _stop(self, *_: object) -> None:
        self.stopping = True

    # -- magic packets ----------------------------------------------------------------------------------

    def _hear(self, strip: socket.socket) -> None:
        try:
            frame = strip.recv(2048)
        except BlockingIOError:
            return
        found = magic.find(frame)
        machine = self.machines.get(found[0]) if found else None
        if machine is None:
            return
        machine.num_packets += 1
        if not machine.condition.hears_magic_packets:
            self._say(f"{machine.duck.name}: magic packet, but it does not hear those")
        elif machine.process is None:
            self._say(f"{machine.duck.name}: magic packet, starting")
            self._switch_on(machine)

    # -- power ------------------------------------------------------------------------------------------

    def _switch_on(self, machine: Machine) -> None:
        if machine.process is not None:
            return
        duck, condition = machine.duck, machine.condition
        files = self._prepare(duck, condition)
        try:
            process = offspring.start(qemu.command(duck, condition, files), self.folder, duck.name)
        except OSError as error:
            self._say(f"{duck.name}: cannot be started: {error}")
            return
        machine.process, machine.powered_at_s = process, time.time()

    def _prepare(self, duck: VmDuck, condition: Condition) -> qemu.MachineFiles:
        files = qemu.MachineFiles(
            self.folder / f"{duck.name}.console", self.folder / f"{duck.name}.vars", self.folder / f"{duck.name}.smbios"
        )
        sizes = [duck.module_mib if slot < condition.num_modules else 0 for slot in range(NUM_SLOTS)]
        files.memory_table.write_bytes(smbios.memory_devices(sizes))
        if duck.firmware == "uefi" and not files.variables.exists():
            shutil.copyfile(qemu.OVMF_VARS, files.variables)
        return files

    def _switch_off(self, machine: Machine) -> None:
        process = machine.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reap()

    def _reap(self) -> None:
        for machine in self.machines.values():
            if machine.process is not None and (code := machine.process.poll()) is not None:
                self._say(f"{machine.duck.name}: is off (ended with {code})")
                machine.process = machine.powered_at_s = None
                offspring.forget(self.folder, machine.duck.name)

    # -- commands ---------------------------------------------------------------------------------------

    def _obey(self, control: socket.socket) -> None:
        peer, _ = control.accept()
        with peer:
            peer.settimeout(1.0)
            try:
                command = json.loads(peer.recv(MAX_COMMAND_BYTES))
                answer = {"ok": True, "value": self._do(command)}
            except (DuckfleetError, KeyError, ValueError, TypeError, OSError) as error:
                answer = {"ok": False, "error": str(error) or repr(error)}
            try:
                peer.send(json.dumps(answer).encode())
            except OSError:
                return

    def _do(self, command: dict[str, Any]) -> object:
        if command["do"] == "status":
            return [self._status(machine) for machine in self.machines.values()]
        machine = self.by_name[command["duck"]]
        if command["do"] == "power":
            if command["to"] in ("off", "cycle"):
                self._switch_off(machine)
            if command["to"] in ("on", "cycle"):
                self._switch_on(machine)
            return self._status(machine)
        if command["do"] == "fault":
            name = check_fault(command["name"])
            faults = machine.condition.faults | {name} if command["on"] else machine.condition.faults - {name}
            machine.condition = Condition(frozenset(faults))
            _set_cable(machine)
            return self._status(machine)
        raise ValueError(f"unknown command {command['do']!r}")

    def _status(self, machine: Machine) -> dict[str, object]:
        return {
            **asdict(machine.duck),
            "powered": machine.process is not None,
            "powered_at_s": machine.powered_at_s,
            "link_mbps": machine.condition.link_mbps(LINK_MBPS) if machine.process is not None else 0,
            "num_magic_packets": machine.num_packets,
            "faults": sorted(machine.condition.faults),
        }

    def _say(self, text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def _set_cable(machine: Machine) -> None:
    for command, text in cable_commands(machine.duck.tap, machine.condition.faults):
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MachineError(f"{' '.join(command[:3])} failed: {done.stderr.strip()}")


def _listen_on(interface: str) -> socket.socket:
    strip = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    strip.bind((interface, 0))
    strip.setblocking(False)
    return strip


def main() -> None:
    folder = Path(sys.argv[1])
    ducks = [VmDuck(**entry) for entry in json.loads((folder / "relay.json").read_text())]
    Relay(folder, ducks).run()


if __name__ == "__main__":
    main()
