"""Mutated traffic against a running duck: no crash, no leak, and the right bits after each batch.

    python -m tests.runtime.duckd.soak --seed 1 --datagrams 1000000 --messages 100000

Two kinds of mutation. *Blind* ones are what an attacker can send: nothing of them may get through, and the duck's
answers to the good requests between them must be right. *Authentic* ones are sealed after they were mutated, as by a
broken host: they reach everything behind the tags; they stay on lane 1, whose answers nobody waits for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
import struct
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from duckfleet.fp9_kernels import chunk_digest
from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.control import ControlClient, DuckRefused
from duckfleet.runtime.errors import IdentityMismatch
from duckfleet.runtime.wire import (
    ChunkBegin,
    ChunkData,
    ChunkDrop,
    ControlHeader,
    ControlType,
    DataHeader,
    DataKind,
    FleetKeys,
    ProbeRequest,
    Range,
)
from duckfleet.runtime.wire.handshake import HostHandshake
from tests.runtime.duckd.conftest import Served, place, serve
from tests.runtime.duckd.data_client import HEADER_BYTES
from tests.runtime.duckd.duck_process import CONTROL_PORT, DuckProcess
from tests.runtime.soaking import run_soak

BATCH = 400
MAX_GROWTH_BYTES = 48 << 20
INTERESTING = (
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    0x7FFF,
    0xFFFF,
    0xFFC0,
    0x7FFFFFFF,
    0xFFFFFFC0,
    0xFFFFFFFF,
)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few changes: bits, bytes, numbers at the edge of something, cuts, repetitions, growth."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        kind = rng.randrange(7)
        if not out:
            out += rng.randbytes(rng.randrange(1, 100))
        place = rng.randrange(len(out))
        if kind == 0:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[place] = rng.randrange(256)
        elif kind == 2:
            size = rng.choice((1, 2, 4, 8))
            value = rng.choice(INTERESTING) & ((1 << 8 * size) - 1)
            out[place : place + size] = value.to_bytes(size, "little")
        elif kind == 3:
            del out[place:]
        elif kind == 4:
            out += rng.randbytes(rng.randrange(1, 600))
        elif kind == 5:
            out[place:place] = out[: rng.randrange(64)]
        else:
            end = min(len(out), place + rng.randrange(1, 16))
            out[place:end] = rng.randbytes(end - place)
    return bytes(out)


def reconfigure(served: Served, rng: random.Random) -> None:
    """A new session; the host's step may go on."""
    served.host.session = rng.getrandbits(63) | 1
    with served.duck.control() as control:
        control.configure(served.host.session_config())
    served.host.inbox.clear()


class DatagramSoak:
    """Mutated datagrams, in batches, each ended by an echo (so that all of it was judged) and a good request."""

    def __init__(self, served: Served, rng: random.Random) -> None:
        self.served, self.rng = served, rng
        self.sent = 0
        self.history: list[bytes] = []
        self.stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.stranger.bind(("127.22.255.1", 0))

    def run(self, count: int) -> None:
        while self.sent < count:
            for _ in range(min(BATCH, count - self.sent)):
                self._send_one()
                self.sent += 1
            self._settle()
            self.served.assert_good()
            if self.rng.random() < 0.5:
                reconfigure(self.served, self.rng)  # lane 1 may have been led to a step that nothing comes after

    def _send_one(self) -> None:
        rng, host = self.rng, self.served.host
        header, payload = self._plausible()
        choice = rng.random()
        if choice < 0.4:
            raw = bytearray(mutate(rng, header.pack() + payload))
            if len(raw) >= HEADER_BYTES:
                raw[7] |= 1  # never lane 0: authentic and wrong would rightly be computed
            mutated = DataHeader.unpack(bytes(raw[:HEADER_BYTES]).ljust(HEADER_BYTES, b"\0"))
            body = bytes(raw[HEADER_BYTES:])
            if rng.random() < 0.7:  # else nearly all of them would fail by their length alone
                mutated = dataclasses.replace(mutated, fragment_bytes=len(body))
            host.send_raw(host.seal(mutated, body)[:65507])
            return
        datagram = host.seal(header, payload)
        self.history.append(datagram)
        if len(self.history) > 500:
            self.history.pop(rng.randrange(len(self.history)))
        if choice < 0.8:
            datagram = mutate(rng, datagram)
        elif choice < 0.9:
            datagram = rng.choice(self.history)  # replayed, or at last delivered
        elif choice < 0.95:
            datagram = rng.randbytes(rng.randrange(1500))
        sender = self.stranger if rng.random() < 0.05 else host.socket
        sender.sendto(datagram[:65507], host.duck)

    def _plausible(self) -> tuple[DataHeader, bytes]:
        rng, host, model = self.rng, self.served.host, self.served.model
        step = self.sent // 64 + 1
        kind = rng.choices((DataKind.REQUEST, DataKind.NACK_REPLY, DataKind.ECHO, DataKind.REPLY), (8, 2, 1, 1))[0]
        if kind == DataKind.REQUEST:
            num_tokens = rng.choice((1, 1, 2, 5))
            x = np.zeros((num_tokens, model.hidden), np.float32)
            place = rng.choice(({}, {}, {"slice": model.rank, "part": rng.randrange(1, 4)}))
            if rng.random() < 0.5:
                experts = np.sort(np.stack([rng.sample(range(8), 2) for _ in range(num_tokens)]), axis=1)
                weights = np.ones((num_tokens, 2), np.float32)
                cut = host.fragments(step, 1, x, experts.astype(np.uint32), weights, lane=1, **place)
            else:
                cut = host.fragments(step, 0, x, lane=1, **place)
            return rng.choice(cut)
        payload = b""
        if kind == DataKind.NACK_REPLY:
            ranges = [
                Range(rng.randrange(40) * 64, rng.choice((64, 448, 0, 0xFFFFFFFF))) for _ in range(rng.randrange(4))
            ]
            payload = b"".join(r.pack() for r in ranges)
        elif kind == DataKind.ECHO:
            payload = rng.randbytes(rng.randrange(200))
        header = host.header(
            kind,
            step=step,
            lane=1,
            slice=model.rank,
            part=rng.choice((0, 1, 0xFF)),
            rank=model.rank,
            num_tokens=1,
            message_bytes=len(payload),
            fragment_bytes=len(payload),
        )
        return header, payload

    def _settle(self) -> None:
        """An authentic echo comes back: everything before it was judged (or did not fit the socket's buffer)."""
        host = self.served.host
        mark = struct.pack("<Q", self.rng.getrandbits(64))
        for _ in range(20):
            host.send([(host.header(DataKind.ECHO, message_bytes=8, fragment_bytes=8), mark)])
            deadline = time.monotonic() + 5
            while (left_s := deadline - time.monotonic()) > 0:
                received = host.receive(left_s)
                host.inbox.clear()
                if received is not None and received[0].kind == DataKind.ECHO_REPLY and received[1] == mark:
                    return
        raise AssertionError("the duck does not echo any more")


class ControlSoak:
    """Mutated control messages: before the handshake by a stranger, behind it by a broken host."""

    def __init__(self, served: Served, rng: random.Random) -> None:
        self.served, self.rng = served, rng
        self.outcomes: Counter[str] = Counter()
        self.client: ControlClient | None = None
        self.since_check = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            if self.rng.random() < 0.2:
                self._stranger()
            else:
                self._broken_host()
            self.since_check += 1
            if self.since_check >= BATCH:
                self.check()
        self.check()

    def check(self) -> None:
        """What the broken host may have changed is put right; then the bits must be."""
        self.since_check = 0
        served = self.served
        with served.duck.control() as control:
            place(control, served.model, served.chunks)
        reconfigure(served, self.rng)
        served.assert_good()
        served.host.inbox.clear()

    def _stranger(self) -> None:
        keys = self.served.duck.keys
        assert keys is not None
        hello = HostHandshake(keys).hello
        data = mutate(
            self.rng, hello + self.rng.choice((b"", struct.pack("<I", 24) + bytes(24) + self.rng.randbytes(60)))
        )
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.served.duck.address, CONTROL_PORT), 20) as sock,
        ):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
        self.outcomes["stranger"] += 1

    def _broken_host(self) -> None:
        kind, payload = self._plausible()
        if self.rng.random() < 0.8:
            payload = mutate(self.rng, payload)
        number = int(kind) if self.rng.random() < 0.9 else self.rng.choice((*range(50), 0xFFFF))
        if number == ControlType.SHUTDOWN:
            return
        if number in (ControlType.ASSIGN, ControlType.CONFIGURE):  # a newer generation would rightly lock us out
            at = 0 if number == ControlType.ASSIGN else 8
            payload = payload[:at] + struct.pack("<I", 1) + payload[at + 4 :]
        header = ControlHeader(type=number, request_id=7, length=len(payload)).pack()
        if self.rng.random() < 0.1:
            header = mutate(self.rng, header)
            if header[6:8] == struct.pack("<H", ControlType.SHUTDOWN):
                return
        try:
            self._exchange(number, header + payload)
        except (DuckRefused, IdentityMismatch) as error:
            self.outcomes[type(error).__name__] += 1
        except MachineError as error:
            self.outcomes[type(error).__name__] += 1
            self._close()

    def _exchange(self, number: int, frame: bytes) -> None:
        if self.client is None:
            self.client = self.served.duck.control()
        connection = self.client._connection
        stream = connection._stream
        assert stream is not None
        with connection._mapped_errors():
            connection._socket.sendall(stream.seal(frame))
            whole = len(frame) >= 16 and ControlHeader.unpack(frame[:16]).type == number
            if number == ControlType.CHUNK_DATA and whole:
                self.outcomes["unanswered"] += 1
                return
            header, payload = connection._receive(time.monotonic() + 20)
        connection._checked(header, payload)
        self.outcomes["answered"] += 1

    def _close(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def _plausible(self) -> tuple[ControlType, bytes]:
        rng, served = self.rng, self.served
        assignment = served.model.assignment(served.chunks)
        chunk = rng.choice(served.chunks)
        digest = bytes.fromhex(chunk_digest(chunk))
        changed = mutate(rng, chunk)
        start = rng.randrange(len(chunk))
        return rng.choice(
            (
                (ControlType.IDENTITY, b""),
                (ControlType.HAVE, b"".join(map(bytes.fromhex, assignment.digests))),
                (ControlType.ASSIGN, assignment.to_wire()),
                (ControlType.CONFIGURE, served.host.session_config().to_wire()),
                (ControlType.CHUNK_BEGIN, ChunkBegin(bytes.fromhex(chunk_digest(changed)), len(changed)).pack()),
                (ControlType.CHUNK_BEGIN, ChunkBegin(digest, len(chunk)).pack()),
                (ControlType.CHUNK_DATA, ChunkData(0).pack() + changed),
                (ControlType.CHUNK_DATA, ChunkData(start).pack() + chunk[start:]),
                (ControlType.CHUNK_END, b""),
                (ControlType.CHUNK_DROP, ChunkDrop(digest).pack()),
                (ControlType.STATS, b""),
                (ControlType.PROBE, ProbeRequest(0).pack()) if rng.random() < 0.05 else (ControlType.IDENTITY, b""),
            )
        )


@dataclasses.dataclass(frozen=True)
class SoakResult:
    """What a soak saw."""

    seed: int
    datagrams: int
    messages: int
    seconds: float
    drops: dict[str, int]
    overrun: int
    control: dict[str, int]
    outcomes: dict[str, int]
    growth_bytes: int


def soak(directory: Path, seed: int, datagrams: int, messages: int) -> SoakResult:
    """Raises AssertionError for a crash, a leak or wrong bits."""
    rng = random.Random(seed)
    started = time.monotonic()
    with DuckProcess(directory, FleetKeys.generate(), ("--log-level", "error")) as duck:
        served = serve(duck)
        pid = duck.pid
        control = ControlSoak(served, rng)
        control.run(max(1, messages // 10))
        first = DatagramSoak(served, rng)
        first.run(datagrams // 10)
        rss_before = duck.rss_bytes()
        control.run(messages - max(1, messages // 10))
        second = DatagramSoak(served, rng)
        second.run(datagrams - datagrams // 10)
        served.assert_good()
        assert duck.is_alive() and duck.pid == pid
        growth = duck.rss_bytes() - rss_before
        with duck.control() as client:
            stats = client.stats()
        served.host.close()
        assert growth < MAX_GROWTH_BYTES, f"resident memory grew by {growth} bytes"
    return SoakResult(
        seed,
        datagrams,
        messages,
        time.monotonic() - started,
        {name: count for name, count in stats["data"]["drops"].items() if count},
        stats["data"]["overrun"],
        {name: count for name, count in stats["control"].items() if count},
        dict(control.outcomes),
        growth,
    )


if __name__ == "__main__":
    run_soak(sys.argv[1:], __doc__, soak)
