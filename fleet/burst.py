"""Burst test of a duck's link: echoes there and back; what is lost each way, comes twice, how long it takes, what fits.

Echoes go to the duck's data plane outside any session. The duck counts what it hears, so that a loss on the way there
is told from one on the way back. Time is the monotonic clock's: nobody sets it.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duckfleet.inventory.errors import DuckfleetError
from duckfleet.runtime.wire import DataHeader, DataKind, WireFormatError

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # linux/in.h: do not fragment, whatever the path is said to carry
IP_UDP_BYTES = 28
SIZES = (576, 1280, 1500, 4078, 9000)  # RFC 791, RFC 8200, Ethernet, what some switches call jumbo, jumbo
TRIES = 8  # of a size: with one frame in ten lost, all are lost once in 10^8
NUM_SINGLE = 48  # one at a time, for the round trips
WINDOW = 32  # echoes under way at once
PAYLOAD_BYTES = 1024
LOST_AFTER_S = 0.1  # a place in the window is given to the next; the echo still counts when it comes
QUIET_S = 3.0  # and after so long without any, none will: a duck may have been kept off its core
ERROR_COUNTERS = ("rx_errors", "rx_crc_errors", "rx_frame_errors", "rx_dropped", "rx_missed_errors", "tx_errors",
                  "tx_dropped", "collisions")  # fmt: skip
Counted = Callable[[], tuple[int, int]]  # echoes that the duck has heard, and answered


class BurstFailed(DuckfleetError):
    """The test could not run; nothing is concluded."""


@dataclass
class _Run:
    """One test's socket and what came back. Echoes carry the run's nonce and their number."""

    socket: socket.socket
    nonce: int = field(default_factory=lambda: secrets.randbits(32))
    sent_ns: dict[int, int] = field(default_factory=dict)
    trips_us: dict[int, float] = field(default_factory=dict)
    duplicates: int = 0

    def send(self, payload_bytes: int) -> int | None:
        """The number of the echo; None where this host itself may not send so much at once."""
        number = len(self.sent_ns)
        header = DataHeader(
            kind=DataKind.ECHO,
            message_bytes=payload_bytes,
            fragment_bytes=payload_bytes,
            key_id=self.nonce,
            sequence=number,
        )
        datagram = header.pack() + bytes(payload_bytes)
        self.sent_ns[number] = time.perf_counter_ns()
        try:
            self.socket.send(datagram)
        except OSError as error:
            del self.sent_ns[number]
            if error.errno == errno.EMSGSIZE:
                return None
            raise
        return number

    def receive(self, timeout_s: float) -> bool:
        """Take what is there, waiting at most so long for the first. Whether anything came."""
        self.socket.settimeout(max(timeout_s, 1e-4))
        came = False
        while True:
            try:
                datagram = self.socket.recv(65536)
            except (TimeoutError, BlockingIOError):
                return came
            self._take(datagram, time.perf_counter_ns())
            came = True
            self.socket.settimeout(0)

    def _take(self, datagram: bytes, now_ns: int) -> None:
        try:
            header, _ = DataHeader.unpack_prefix(datagram)
        except WireFormatError:
            return
        if header.kind != DataKind.ECHO_REPLY or header.key_id != self.nonce or header.sequence not in self.sent_ns:
            return
        if header.sequence in self.trips_us:
            self.duplicates += 1
            return
        self.trips_us[header.sequence] = (now_ns - self.sent_ns[header.sequence]) / 1000


def burst_test(
    address: tuple[str, int], counted: Counted, *, num_echoes: int, mtu: int, quiet_s: float = QUIET_S
) -> dict[str, Any]:
    """Run it against the data plane at `address`; what `diagnosis.sources.link.burst` reads.

    Raises `BurstFailed` where nothing comes back at all; what `counted` raises passes through.
    """
    with _socket(address) as sock:
        run = _Run(sock)
        passed = _largest(run, mtu, quiet_s)
        if passed is None:
            raise BurstFailed(f"no answer to echoes at UDP port {address[1]}")
        run = _Run(sock)
        heard_before, answered_before = counted()
        payload_bytes = min(PAYLOAD_BYTES, passed - IP_UDP_BYTES - DataHeader.num_bytes())
        single = min(NUM_SINGLE, num_echoes)
        _send_window(run, single, 1, payload_bytes)
        _send_window(run, num_echoes, WINDOW, payload_bytes)
        _wait_for_late(run, quiet_s)
        heard, answered = counted()
    sent = len(run.sent_ns)
    trips = sorted(run.trips_us[number] for number in range(single) if number in run.trips_us)
    return {
        "to_duck": _way(sent, heard - heard_before),
        "from_duck": {**_way(answered - answered_before, len(run.trips_us)), "duplicates": run.duplicates},
        "rtt_us": {name: _quantile(trips, q) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))},
        "mtu_passed": passed,
        "payload_bytes": payload_bytes,
    }


@contextlib.contextmanager
def _socket(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        try:
            sock.connect(address)
            yield sock
        except ConnectionRefusedError as error:
            raise BurstFailed(f"nobody listens at UDP port {address[1]}") from error
        except OSError as error:
            raise BurstFailed(f"UDP {address[0]}:{address[1]}: {error.strerror or error}") from error


def _largest(run: _Run, mtu: int, quiet_s: float) -> int | None:
    """The largest IP packet of SIZES and `mtu`, at most that, which came back whole; None: not even the smallest."""
    best = None
    for size in sorted({size for size in (*SIZES, mtu) if size <= mtu}):
        if not _passes(run, size, quiet_s):
            break
        best = size
    return best


def _passes(run: _Run, size: int, quiet_s: float) -> bool:
    numbers: list[int] = []
    for wait_s in (*(0.05 * (1 + attempt) for attempt in range(TRIES)), quiet_s):
        number = run.send(size - IP_UDP_BYTES - DataHeader.num_bytes())
        if number is None:
            return False
        numbers.append(number)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            run.receive(deadline - time.monotonic())
            if any(number in run.trips_us for number in numbers):
                return True
    return False


def _send_window(run: _Run, up_to: int, window: int, payload_bytes: int) -> None:
    """Send until `up_to` echoes were sent, at most `window` of them under way; one that is late no longer counts."""
    under_way: dict[int, float] = {}
    while len(run.sent_ns) < up_to or under_way:
        while len(under_way) < window and len(run.sent_ns) < up_to:
            number = run.send(payload_bytes)
            if number is None:
                raise BurstFailed(f"this host cannot send {payload_bytes} bytes there any more")
            under_way[number] = time.monotonic() + LOST_AFTER_S
        run.receive(0.02)
        now_s = time.monotonic()
        under_way = {n: late_s for n, late_s in under_way.items() if n not in run.trips_us and late_s > now_s}


def _wait_for_late(run: _Run, quiet_s: float) -> None:
    until = time.monotonic() + quiet_s
    while len(run.trips_us) < len(run.sent_ns) and time.monotonic() < until:
        if run.receive(until - time.monotonic()):
            until = time.monotonic() + quiet_s


def _way(sent: int, received: int) -> dict[str, int]:
    return {"sent": sent, "received": max(0, min(sent, received)), "duplicates": max(0, received - sent)}


def _quantile(values: list[float], q: float) -> float | None:
    return round(values[min(len(values) - 1, int(q * len(values)))], 1) if values else None


def host_counters(interface: str) -> dict[str, int]:
    """What the host's own port counts as errors; empty where there is no such port."""
    found = {}
    for name in ERROR_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            found[name] = int((Path("/sys/class/net") / interface / "statistics" / name).read_text())
    return found


def rises(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each rose; one that fell began anew."""
    return {
        name: after[name] - count if after[name] >= count else after[name]
        for name, count in before.items()
        if name in after
    }
