"""Network namespaces made by a test: a host with a port into each of several segments, and a tap on each segment."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

# Prints "ready", then each frame that arrives on the interface, in hex, until its standard input closes.
_TAP = """
import select, socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.bind((sys.argv[1], 0))
print("ready", flush=True)
while True:
    readable, _, _ = select.select([tap, sys.stdin], [], [])
    if tap in readable:
        frame, address = tap.recvfrom(65535)
        if address[2] != socket.PACKET_OUTGOING:
            print(frame.hex(), flush=True)
    elif sys.stdin in readable:
        break
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@dataclass(frozen=True)
class Segment:
    """One broadcast domain: the host's interface in it, and the namespace and interface on its far side."""

    interface: str
    host_address: str
    namespace: str
    far_interface: str


@dataclass(frozen=True)
class Network:
    """The host's namespace and its segments."""

    host: str
    segments: tuple[Segment, ...]

    def on_host(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the host."""
        return run_in(self.host, *command, **options)

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python on the host."""
        return self.on_host(sys.executable, "-c", code, *arguments)


def run_in(namespace: str, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        ["ip", "netns", "exec", namespace, *command],
        **{"capture_output": True, "text": True, "timeout": 60, "stdin": subprocess.DEVNULL, **options},
    )


@contextmanager
def network(num_segments: int) -> Iterator[Network]:
    """A host 10.21.d.1/24 on segment d; the far side of each is 10.21.d.101. There is no default route."""
    mark = uuid.uuid4().hex[:6]
    host = f"duckhost-{mark}"
    with ExitStack() as stack:
        _namespace(stack, host)
        segments = []
        for number in range(1, num_segments + 1):
            far = f"duckfar{number}-{mark}"
            _namespace(stack, far)
            near_if, far_if = f"h{number}{mark}", f"d{number}{mark}"
            ip("link", "add", near_if, "netns", host, "type", "veth", "peer", "name", far_if, "netns", far)
            ip("-n", host, "address", "add", f"10.21.{number}.1/24", "broadcast", "+", "dev", near_if)
            ip("-n", far, "address", "add", f"10.21.{number}.101/24", "broadcast", "+", "dev", far_if)
            for namespace, interface in ((host, near_if), (far, far_if)):
                ip("-n", namespace, "link", "set", interface, "up")
            segments.append(Segment(near_if, f"10.21.{number}.1", far, far_if))
        yield Network(host, tuple(segments))


def _namespace(stack: ExitStack, name: str) -> None:
    ip("netns", "add", name)
    stack.callback(ip, "netns", "delete", name)
    run_in(name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
    ip("-n", name, "link", "set", "lo", "up")


@contextmanager
def taps(*segments: Segment) -> Iterator[list[list[bytes]]]:
    """What arrives on the far side of each segment while the context lasts; complete once it has ended."""
    captured: list[list[bytes]] = [[] for _ in segments]
    children = []
    try:
        for segment in segments:
            child = subprocess.Popen(
                ["ip", "netns", "exec", segment.namespace, sys.executable, "-c", _TAP, segment.far_interface],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            children.append(child)
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        yield captured
    finally:
        for frames, child in zip(captured, children, strict=False):
            out, _ = child.communicate(timeout=30)
            frames.extend(bytes.fromhex(line) for line in out.split())


def is_possible() -> bool:
    return os.geteuid() == 0
