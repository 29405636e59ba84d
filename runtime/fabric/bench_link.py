"""Networks for the fabric's benchmark: loopback, and a wire of a given speed made of network namespaces.

A shaped wire is `host == switch == duck`, two veth pairs bridged in the middle, where `tc tbf` holds back what leaves
for either end. What the switch does (bridging, shaping, its timers) is kept on the host's core, as a real switch takes
nothing of a duck's; so is the interrupt work of the duck's receiving end, which a real duck has to do itself.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from duckfleet.inventory.errors import MachineError, OperatorError

_CLONE_NEWNET = 0x40000000
_ETHERNET_BYTES = 14


@dataclass(frozen=True, slots=True)
class BenchLink:
    """Where host and duck are, and what a duck's command is run through."""

    host_address: str
    duck_address: str
    broadcast: str
    mtu: int
    duck_prefix: tuple[str, ...] = ()


LOOPBACK = BenchLink("127.23.250.1", "127.23.250.101", "127.255.255.255", 65536)


@contextmanager
def shaped_link(bits_per_s: int, mtu: int, switch_cpu: int) -> Iterator[BenchLink]:
    """The calling thread is in the host's namespace meanwhile; all of it is gone afterwards.

    Raises `OperatorError` when we are not root, `MachineError` when this machine cannot make such a network.
    """
    if os.geteuid() != 0:
        raise OperatorError("a shaped network is made of network namespaces: run this as root")
    host, switch, duck = (f"duckfleet-bench-{os.getpid()}-{end}" for end in ("host", "switch", "duck"))
    made = []
    try:
        for namespace in (host, switch, duck):
            _run("ip", "netns", "add", namespace)
            made.append(namespace)
        _run("ip", "-n", switch, "link", "add", "bridge", "mtu", str(mtu), "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for namespace, port, address in ((host, "host", "10.231.77.1/24"), (duck, "duck", "10.231.77.101/24")):
            size = ("mtu", str(mtu))
            peer = ("peer", "name", port, *size, "netns", switch)
            _run("ip", "-n", namespace, "link", "add", "wire", *size, "type", "veth", *peer)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", namespace, "address", "add", address, "broadcast", "+", "dev", "wire")
            _run("ip", "-n", namespace, "link", "set", "wire", "up")
            shape = ("rate", f"{bits_per_s}bit", "burst", str(mtu + _ETHERNET_BYTES), "limit", "4m")  # one packet
            _run("tc", "-n", switch, "qdisc", "add", "dev", port, "root", "tbf", *shape)
            steer = f"echo {1 << switch_cpu:x} > /sys/class/net/{port}/queues/rx-0/rps_cpus"
            _run("ip", "netns", "exec", switch, "sh", "-c", steer)
        with _inside(host):
            yield BenchLink("10.231.77.1", "10.231.77.101", "10.231.77.255", mtu, ("ip", "netns", "exec", duck))
    finally:
        for namespace in made:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """The calling thread, and threads that it starts, in a network namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            _enter(inside)
        finally:
            os.close(inside)
        try:
            yield
        finally:
            _enter(before)
    finally:
        os.close(before)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise MachineError(f"setns: {os.strerror(ctypes.get_errno())}")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MachineError(f"{command[0]}: {error.strerror} (install iproute2)") from error
    if done.returncode != 0:
        raise MachineError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
