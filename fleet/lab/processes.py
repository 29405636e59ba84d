"""Bring a lab of process ducks up and down, leaving nothing behind."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from duckfleet.fleet.context import SITE_FILE
from duckfleet.fleet.lab.ownership import LAB_VARIABLE, ProcessId, lab_marker, processes_of_lab
from duckfleet.fleet.lab.plan import FIRST_PORT, LAST_PORT, PORT_BLOCK, LabPlan, with_port
from duckfleet.fleet.lab.relay import RelayConfig, RelayDuck
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.sitewriter import site_text

START_TIMEOUT_S = 20.0
_HEADER = """The site file of a lab: every duck is a process on this machine.
`duckctl lab down` removes it."""


@dataclass(frozen=True, slots=True)
class LabDuckStatus:
    """Whether a lab's duck runs."""

    name: str
    mac: str
    address: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class LabStatus:
    """A lab as found on this machine."""

    lab_id: str
    kind: str
    relay_pid: int | None
    ducks: tuple[LabDuckStatus, ...]


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """How the lab's daemons are started."""

    duckd: Path
    num_threads: int = 1
    spin_us: int = 0
    fleet_key: Path | None = None  # public half; None: --no-auth
    enrolment: Path | None = None


def new_lab_id() -> str:
    return secrets.token_hex(2)


def find_free_ports(plan: LabPlan) -> LabPlan:
    """The lab moved to the first block of ports of which none is in use. Raises `MachineError` when all are taken."""
    for base in range(FIRST_PORT, LAST_PORT, PORT_BLOCK):
        moved = with_port(plan, base)
        if ports_are_free(moved):
            return moved
    raise MachineError(f"no free ports for a lab between {FIRST_PORT} and {LAST_PORT}: too many labs on this machine?")


def ports_are_free(plan: LabPlan) -> bool:
    """Whether everything the lab will bind can be bound now."""
    wanted = [(domain.broadcast, domain.wol_port) for domain in plan.domains[:1]]
    wanted += [(domain.broadcast, domain.data_port) for domain in plan.domains]
    ports = {domain.name: domain.data_port for domain in plan.domains}
    wanted += [(duck.address, ports[duck.domain]) for duck in plan.ducks]
    for address in wanted:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(address)
            except OSError:
                return False
    for duck in plan.ducks:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((duck.address, plan.control_port))
            except OSError:
                return False
    return True


def duck_command(plan: LabPlan, address: str, data_port: int, store: Path, options: DaemonOptions) -> list[str]:
    """The daemon's command line for one duck."""
    command = [str(options.duckd), "--bind", address, "--broadcast", plan.domains[0].broadcast]
    command += ["--control-port", str(plan.control_port), "--data-port", str(data_port)]
    command += ["--threads", str(options.num_threads), "--spin-us", str(options.spin_us), "--store", str(store)]
    if options.fleet_key is None or options.enrolment is None:
        return [*command, "--no-auth"]
    return [*command, "--fleet-key", str(options.fleet_key), "--enrolment", str(options.enrolment)]


def lab_up(folder: Path, plan: LabPlan, options: DaemonOptions) -> Path:
    """Write the lab's site file and start its power relay; every duck is off. Returns the site file.

    Raises `OperatorError` when a lab is up in `folder` already, `MachineError` when the relay does not start.
    """
    status = lab_status(folder)
    if status is not None and status.relay_pid is None:
        lab_down(folder)  # what a crash left
    elif status is not None:
        raise OperatorError(f"a lab is in {folder} already: `duckctl lab status`, `duckctl lab down`")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stores = folder / "stores"
    ports = {domain.name: domain.data_port for domain in plan.domains}
    ducks = []
    for duck in plan.ducks:
        store = stores / duck.name
        store.mkdir(parents=True, exist_ok=True)
        command = duck_command(plan, duck.address, ports[duck.domain], store, options)
        ducks.append(RelayDuck(duck.mac, duck.name, tuple(command), duck.secure_on))
    (folder / "lab.json").write_text(
        json.dumps({"kind": "processes", "lab_id": plan.lab_id, "ducks": [asdict(duck) for duck in plan.ducks]})
    )
    config = RelayConfig(plan.domains[0].broadcast, plan.wol_port, tuple(ducks))
    (folder / "relay.json").write_text(json.dumps(asdict(config)))
    _start_relay(folder)
    site = folder / SITE_FILE
    site.write_text(
        site_text(
            "lab",
            plan.domains,
            plan.ducks,
            header=_HEADER,
            extra="[start]\nstagger_s = 0.05\nrepeats = 2\nretry_s = 2.0",
        )
    )
    return site


def _start_relay(folder: Path) -> None:
    ready_out, ready_in = os.pipe()
    try:
        with (folder / "relay.log").open("ab") as log:
            relay = subprocess.Popen(
                [sys.executable, "-m", "duckfleet.fleet.lab.relay", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=ready_in,
                stderr=log,
                start_new_session=True,  # ctrl-C in the terminal is not a power cut
                env={**os.environ, LAB_VARIABLE: lab_marker(folder)},
            )
        os.close(ready_in)
        process = ProcessId.of(relay.pid)
        if process is not None:
            process.save(folder / "relay.pid.json")
        with open(ready_out, closefd=False) as ready:
            line = ready.readline()
    finally:
        os.close(ready_out)
    if line.strip() != "ready":
        relay.wait(START_TIMEOUT_S)
        last = (folder / "relay.log").read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        lab_down(folder)
        raise MachineError(f"the lab's power relay did not start: {last[0]}")


def lab_status(folder: Path) -> LabStatus | None:
    """What is there of a process lab in `folder`, alive or crashed; None: nothing."""
    try:
        lab = json.loads((folder / "lab.json").read_text())
        ducks = tuple(
            LabDuckStatus(duck["name"], duck["mac"], duck["address"], _alive(folder / f"{duck['name']}.pid.json"))
            for duck in lab["ducks"]
        )
        return LabStatus(lab["lab_id"], lab["kind"], _alive(folder / "relay.pid.json"), ducks)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError) as error:
        raise OperatorError(f"{folder / 'lab.json'} is damaged ({error}); `duckctl lab down` cleans up") from error


def lab_down(folder: Path) -> int:
    """End every process of the lab in `folder`, recorded or not, and remove the folder. Returns how many were ended.

    Works on what a crash left: records are only believed for the process that they were written for.
    """
    ended = 0
    relay = ProcessId.load(folder / "relay.pid.json")
    if relay is not None:
        ended += relay.end(grace_s=5.0)
    for record in sorted(folder.glob("*.pid.json")):
        process = ProcessId.load(record)
        if process is not None:
            ended += process.end(grace_s=2.0)
    for process in processes_of_lab(folder):
        ended += process.end(grace_s=1.0)
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # another `lab down` was quicker
    except OSError as error:
        raise OperatorError(
            f"the lab's processes are ended, but {error.filename or folder} cannot be removed: {error.strerror}; "
            "remove it yourself, then `duckctl lab down` again"
        ) from error
    return ended


def _alive(record: Path) -> int | None:
    process = ProcessId.load(record)
    return process.pid if process is not None and process.is_alive() else None


def wait_until_gone(folder: Path, timeout_s: float) -> bool:
    """Whether the lab's ducks have all ended within the time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        status = lab_status(folder)
        if status is None or all(duck.pid is None for duck in status.ducks):
            return True
        time.sleep(0.05)
    return False
