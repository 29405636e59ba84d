"""Bring a lab of virtual machines up and down, and tell its relay what to do. Leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from duckfleet.fleet.context import SITE_FILE
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.ownership import LAB_VARIABLE, ProcessId, lab_marker
from duckfleet.fleet.vm import network, qemu
from duckfleet.fleet.vm.plan import VmLabPlan
from duckfleet.fleet.vm.relay import SOCKET_FILE
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.sitewriter import site_text

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86 ipxe-qemu",
    "dnsmasq": "dnsmasq-base",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
}
KIND = "vm"
ANSWER_TIMEOUT_S = 15.0
_HEADER = """The site file of a lab: every duck is a virtual machine in a network namespace of this machine.
duckctl enters that namespace by itself. `duckctl lab down` removes it all."""


@dataclass(frozen=True, slots=True)
class PortState:
    """What the lab's "switch" and "power strip" know of a duck: evidence from outside, whatever the duck says."""

    name: str
    mac: str
    powered: bool
    powered_at_s: float | None
    link_mbps: int  # 0: no link
    num_magic_packets: int
    faults: tuple[str, ...]


def check_programs() -> None:
    """Raises `OperatorError` naming the Debian packages that are missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = {package for program, package in PACKAGES.items() if not shutil.which(program, path=path)}
    if not qemu.OVMF_CODE.is_file():
        missing.add("ovmf")
    if missing:
        raise OperatorError(f"a lab of virtual machines needs Debian's packages: apt-get install {' '.join(missing)}")


def lab_up(folder: Path, plan: VmLabPlan, boot_service: Sequence[str]) -> Path:
    """Make the network, write the site file, start the power relay and the boot service; every duck is off.

    `boot_service` is the command that serves this lab's site; it says one line when it is ready. Returns the site
    file. Raises `OperatorError` when a lab is up already, `MachineError` when a part does not start.
    """
    check_programs()
    status = processes.lab_status(folder)
    if status is not None and status.relay_pid is not None:
        raise OperatorError(f"a lab is in {folder} already: `duckctl lab status`, `duckctl lab down`")
    lab_down(folder)  # what a crash left
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    namespace = network.namespace_of(folder)
    record = {
        "kind": KIND,
        "lab_id": plan.lab_id,
        "namespace": namespace,
        "ducks": [{"name": m.name, "mac": m.mac, "address": m.address} for m in plan.machines],
    }
    (folder / "lab.json").write_text(json.dumps(record))
    try:
        network.create(namespace, plan)
        (folder / "relay.json").write_text(json.dumps([asdict(machine) for machine in plan.machines]))
        site = folder / SITE_FILE
        site.write_text(_site(plan, folder))
        relay = [sys.executable, "-m", "duckfleet.fleet.vm.relay", str(folder)]
        _start(folder, "relay", network.inside(namespace, relay), "ready")
        _start(folder, "boot-service", network.inside(namespace, boot_service), "serving")
    except BaseException:
        lab_down(folder)
        raise
    return site


def _site(plan: VmLabPlan, folder: Path) -> str:
    duckctl = f"{sys.executable} -m duckfleet.fleet.cli --state {folder.parent} lab power {{name}}"
    # Firmware, kernel and image take their share of the little memory that a lab's duck has.
    ram_gib = plan.machines[0].memory_mib * 0.92 / 1024
    extra = f"""\
[expect]
ram_gib = {max(ram_gib, 0.25):.3f}

[start]
stagger_s = 1.0
repeats = 2
retry_s = 5.0

# The lab's switchable power strip. A duck that says power = "strip" is switched by it and not by magic packets.
[power.strip]
driver = "command"
on = {json.dumps(duckctl + " on")}
off = {json.dumps(duckctl + " off")}
cycle = {json.dumps(duckctl + " cycle")}
"""
    extra += f"""
# What the lab's switch and power strip say of a duck, whatever the duck says.
[evidence.lab]
driver = "vm-lab"
target = {json.dumps(str(folder))}
"""
    return site_text("lab", plan.domains, plan.ducks, header=_HEADER, extra=extra)


def _start(folder: Path, name: str, command: Sequence[str], ready: str) -> None:
    """Start a part of the lab; returns when it has said that it is ready."""
    out, into = os.pipe()
    try:
        with (folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=log,
                start_new_session=True,  # ctrl-C in the terminal is not a power cut
                env={**os.environ, LAB_VARIABLE: lab_marker(folder)},
            )
        os.close(into)
        process = ProcessId.of(child.pid)
        if process is not None:
            process.save(folder / f"{name}.pid.json")
        with open(out, closefd=False) as lines:
            line = lines.readline()
    finally:
        os.close(out)
    if not line.startswith(ready):
        child.wait(ANSWER_TIMEOUT_S)
        last = (folder / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise MachineError(f"the lab's {name} did not start: {last[0]}")


def lab_down(folder: Path) -> int:
    """End every process of the lab, also what a crash left, remove its namespace and its folder."""
    namespace = network.namespace_of(folder)
    ended = processes.lab_down(folder)
    return ended + network.destroy(namespace)


def is_vm_lab(folder: Path) -> bool:
    """Whether a lab of virtual machines, or what is left of one, is there."""
    return network.exists(network.namespace_of(folder)) or _record(folder).get("kind") == KIND


def _record(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / "lab.json").read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def ask_relay(folder: Path, **command: object) -> Any:
    """Have the relay do something. Raises `MachineError` when it is not there, `OperatorError` when it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            connection.connect(str(folder / SOCKET_FILE))
            connection.send(json.dumps(command).encode())
            answer = json.loads(connection.recv(1 << 20))
        except OSError as error:
            raise MachineError(
                f"the lab's power relay does not answer ({error}): `duckctl lab status`; `lab down` cleans up"
            ) from error
    if not answer["ok"]:
        raise OperatorError(f"the lab's power relay refuses: {answer['error']}")
    return answer["value"]


def ports(folder: Path) -> tuple[PortState, ...]:
    """What the lab knows of each duck's power and link."""
    return tuple(_port(entry) for entry in ask_relay(folder, do="status"))


def set_fault(folder: Path, duck: str, name: str, *, on: bool) -> PortState:
    """Give a duck a fault, or take it away. Cables change at once, machines when they start next."""
    return _port(ask_relay(folder, do="fault", duck=duck, name=name, on=on))


def set_power(folder: Path, duck: str, to: str) -> PortState:
    """Switch a duck's power at the strip: on, off or cycle."""
    return _port(ask_relay(folder, do="power", duck=duck, to=to))


def _port(entry: dict[str, Any]) -> PortState:
    return PortState(
        entry["name"],
        entry["mac"],
        entry["powered"],
        entry["powered_at_s"],
        entry["link_mbps"],
        entry["num_magic_packets"],
        tuple(entry["faults"]),
    )
