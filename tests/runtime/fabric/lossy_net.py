"""A network that loses, repeats and reorders datagrams: two namespaces joined by a relay process with a TAP in each.

Real frames, a real MTU of 1500 and a real broadcast address; only UDP is disturbed. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

HOST_ADDRESS = "10.23.9.1"
BROADCAST = "10.23.9.255"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP_NO_PI = 0x0002 | 0x1000
_ETHERTYPE_IPV4, _IPPROTO_UDP = b"\x08\x00", 17


def enter(namespace: str) -> None:
    """Move the calling thread into a named network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def inside(namespace: str, work: Callable[[], T]) -> T:
    """`work()` on a thread of its own in the namespace; sockets and threads that it makes stay there."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter(namespace)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class LossyNet:
    """Namespaces `host` and `ducks`. `num_ducks` addresses 10.23.9.101 and up on the ducks' side. A context manager."""

    def __init__(self, num_ducks: int, *, loss: float, repeat: float, reorder: float, seed: int = 1) -> None:
        self.host = f"dfh{os.getpid()}"
        self.ducks = f"dfd{os.getpid()}"
        self.duck_addresses = [f"10.23.9.{101 + i}" for i in range(num_ducks)]
        self._arguments = [self.host, self.ducks, str(loss), str(repeat), str(reorder), str(seed)]
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            for namespace in (self.host, self.ducks):
                _ip("netns", "add", namespace)
                _ip("-n", namespace, "link", "set", "lo", "up")
            self._relay = subprocess.Popen([sys.executable, __file__, *self._arguments], stdout=subprocess.PIPE)
            assert self._relay.stdout is not None
            if self._relay.stdout.readline() != b"ready\n":
                raise RuntimeError("the relay did not start")
            for namespace, addresses in ((self.host, [HOST_ADDRESS]), (self.ducks, self.duck_addresses)):
                for address in addresses:
                    _ip("-n", namespace, "address", "add", f"{address}/24", "broadcast", BROADCAST, "dev", "net0")
                _ip("-n", namespace, "link", "set", "net0", "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
        for namespace in (self.host, self.ducks):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _tap(namespace: str) -> int:
    enter(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"net0", _IFF_TAP_NO_PI))
    return fd


def _relay_frames(host: str, ducks: str, loss: float, repeat: float, reorder: float, seed: int) -> None:
    chance = random.Random(seed)
    fds = [_tap(host), _tap(ducks)]
    other = {fds[0]: fds[1], fds[1]: fds[0]}
    held: dict[int, bytes] = {}  # by direction: a frame that the next one overtakes
    print("ready", flush=True)
    while True:
        for fd in select.select(fds, [], [], 0.01)[0] or held.copy():
            try:
                frame = os.read(fd, 2048)
            except BlockingIOError:
                frame = b""
            out = [frame] if frame else []
            if frame[12:14] == _ETHERTYPE_IPV4 and frame[23] == _IPPROTO_UDP:
                if chance.random() < loss:
                    out = []
                elif chance.random() < repeat:
                    out = [frame, frame]
                elif chance.random() < reorder and fd not in held:
                    held[fd] = frame
                    continue
            if fd in held:
                out.append(held.pop(fd))
            for one in out:
                with contextlib.suppress(OSError):  # the other side is not up yet
                    os.write(other[fd], one)


if __name__ == "__main__":
    _relay_frames(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6]), int(sys.argv[6]))
