"""The lab's network: one namespace, a bridge a domain with the host's address, a tap a duck, a listener's port."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from duckfleet.fleet.lab.ownership import ProcessId
from duckfleet.fleet.vm.plan import VmLabPlan
from duckfleet.inventory.errors import MachineError, OperatorError

NAMESPACES = Path("/run/netns")


def namespace_of(lab_dir: Path) -> str:
    """The namespace of the lab in this folder: named by the folder, so that it is found without any record."""
    return f"duckfleet-{hashlib.sha256(str(lab_dir.resolve()).encode()).hexdigest()[:8]}"


def exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def listener_port(bridge: str) -> str:
    """The interface at which the power relay hears what is on a domain's wire."""
    return f"{bridge}-strip"


def create(namespace: str, plan: VmLabPlan) -> None:
    """Make the namespace and all in it. Raises `OperatorError` without the right to."""
    if os.geteuid() != 0:
        raise OperatorError("a lab of virtual machines needs root: network namespace, bridge and taps")
    _run(["ip", "netns", "add", namespace])
    lines = ["link set lo up"]
    for domain in plan.domains:
        bridge, strip = domain.interface, listener_port(domain.interface)
        lines += [
            f"link add {bridge} type bridge forward_delay 0 mcast_snooping 0",
            f"address add {domain.host_address}/{domain.prefix_len} broadcast {domain.broadcast} dev {bridge}",
            f"link set {bridge} up",
            f"link add {strip} type veth peer name {strip}p",
            f"link set {strip}p master {bridge} up",
            f"link set {strip} up",
        ]
    for machine in plan.machines:
        lines += [
            f"tuntap add dev {machine.tap} mode tap",
            f"link set {machine.tap} master {machine.bridge} up",
        ]
    # No address by autoconfiguration: only what a lab has been given is on its wires.
    _run(["ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"])
    _run(["ip", "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def destroy(namespace: str) -> int:
    """End what still runs in the namespace and remove it with everything in it. Returns how many were ended."""
    if not exists(namespace):
        return 0
    ended = 0
    for word in _run(["ip", "netns", "pids", namespace]).split():
        process = ProcessId.of(int(word))
        if process is not None and int(word) != os.getpid():
            ended += process.end(grace_s=2.0)
    _run(["ip", "netns", "delete", namespace])
    return ended


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command, run in the namespace."""
    return ["ip", "netns", "exec", namespace, *command]


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """This thread, and threads and processes it starts, are in the namespace; afterwards the thread is back."""
    stay = Stay(namespace)
    try:
        yield
    finally:
        stay.leave()


class Stay:
    """This thread's stay in the namespace, from now until `leave`."""

    def __init__(self, namespace: str) -> None:
        """Raises `OperatorError` when the thread may not go there."""
        self._namespace = namespace
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _set_namespace(namespace)
        except OSError as error:
            os.close(self._home)
            raise OperatorError(f"cannot enter the lab's network namespace {namespace}: {error.strerror}") from error

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """This thread is back where it came from; a socket opened meanwhile stays there."""
        _set_namespace(self._home)
        try:
            yield
        finally:
            _set_namespace(self._namespace)

    def leave(self) -> None:
        _set_namespace(self._home)
        os.close(self._home)


def _set_namespace(namespace: str | int) -> None:
    from pyroute2 import netns

    netns.setns(namespace)


def _run(command: Sequence[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OperatorError(f"{command[0]} is not here: install Debian's package iproute2") from error
    if done.returncode != 0:
        raise MachineError(f"{' '.join(command[:6])} failed: {done.stderr.strip()}")
    return done.stdout
