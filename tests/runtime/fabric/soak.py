"""Mutated traffic against a running host: no crash, no leak, the bits of LocalFabric in every forward.

    python -m tests.runtime.fabric.soak --seed 1 --datagrams 1000000 --messages 100000

*Blind* datagrams are what an attacker on the LAN can send, from any address: captured replies changed, cut, joined,
replayed. All of them must be counted as dropped. *Authentic* ones are sealed after they were mutated, with the key of
a duck that owes nothing of what is computed: they reach everything behind the tags. Control messages are answers of
a lying duck, with and without the right keys; the client must give a result or a typed error, in time.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.control import Assignment, ControlClient, SessionConfig
from duckfleet.runtime.fabric import LocalFabric, Ticket, UdpFabric
from duckfleet.runtime.fabric.session import SessionSecrets
from duckfleet.runtime.planner import FfnShape, ModelShape
from duckfleet.runtime.wire import (
    MAX_CONTROL_PAYLOAD,
    ControlHeader,
    ControlType,
    DataHeader,
    DataKind,
    Direction,
    ErrorReply,
    FleetKeys,
    IdentityReply,
    Range,
    TagAlgorithm,
)
from tests.runtime.duckd.soak import mutate
from tests.runtime.fabric.cut_model import CutModel
from tests.runtime.fabric.duck_processes import DuckFlock
from tests.runtime.fabric.lying_duck import LyingDuck
from tests.runtime.fabric.spoofed_datagrams import MAX_PAYLOAD, Sniffer, Spoofer, kernel_drops
from tests.runtime.soaking import resident_bytes, run_soak

BATCH = 400
MAX_OF_SESSION = 16_000
MESSAGES_OF_DUCK = 100
MAX_GROWTH_BYTES = 48 << 20
# Two units on three ranks in the first layer: one of them owes nothing there.
SHAPE = ModelShape("soak", 64, (FfnShape(32), FfnShape(96), FfnShape(48, num_experts=5, shared_intermediate=32)))
HEADER_BYTES = DataHeader.num_bytes()
AT = {field.name: field.offset for field in DataHeader.layout()}
KINDS_FROM_DUCKS = (DataKind.REPLY, DataKind.NACK_REQUEST, DataKind.BUSY)
CIPHERS = {TagAlgorithm.AES256_GMAC: AESGCM, TagAlgorithm.CHACHA20_POLY1305: ChaCha20Poly1305}
Datagram = tuple[bytes, tuple[str, int]]  # and where it comes from


class Rogue:
    """A duck's identity in a session, put to bad use. Its sequences are far above the real one's."""

    def __init__(self, algorithm: TagAlgorithm, key: bytes, key_id: int, rank: int, source: tuple[str, int]) -> None:
        self._cipher = CIPHERS[algorithm](key)
        self._key_id, self._rank = key_id, rank
        self.source = source
        self._sequence = 1 << 32

    def claim(self, raw: bytearray) -> None:
        """Make it this duck's, as far as fields go."""
        struct.pack_into("<H", raw, AT["rank"], self._rank)

    def seal(self, raw: bytearray) -> bytes:
        self._sequence += 1
        struct.pack_into("<IQ16s", raw, AT["key_id"], self._key_id, self._sequence, bytes(16))
        nonce = struct.pack("<IQ", Direction.DUCK_TO_HOST, self._sequence)
        raw[AT["tag"] : HEADER_BYTES] = self._cipher.encrypt(nonce, b"", bytes(raw))
        return bytes(raw)


class DatagramSoak:
    """Sessions one after the other, on one domain and on two; batches thrown while forwards go on."""

    def __init__(self, flock: DuckFlock, rng: random.Random) -> None:
        self.flock, self.rng = flock, rng
        self.model = CutModel(SHAPE, 3)
        self.inputs_rng = random.Random(rng.getrandbits(64))  # how often it is used depends on time
        self.local = LocalFabric(self.model.plan, self.model.chunk_bytes)
        self.history: list[Datagram] = []
        self.drops: Counter[str] = Counter()
        self.thrown = self.forwards = self.sessions = self.kernel_drops = 0

    def run(self, count: int) -> None:
        end = self.thrown + count
        of_session = min(MAX_OF_SESSION, -(-count // 4))
        while self.thrown < end:
            ranks = ([0, 1, 2], [0, 1, 3])[self.sessions % 2]
            session = Session(self, ranks, is_authentic=self.sessions // 2 % 2 == 1)
            try:
                session.run(min(end - self.thrown, of_session))
            finally:
                session.close()
            self.sessions += 1


class Session:
    """One `UdpFabric`, its thrower, and the account of what arrived."""

    def __init__(self, soak: DatagramSoak, ranks: list[int], *, is_authentic: bool) -> None:
        self.soak, self.rng, self.model = soak, soak.rng, soak.model
        flock = soak.flock
        self.roster = flock.roster(ranks)
        flock.place(self.roster, self.model.plan, self.model.chunks)
        self.sent_before = self._ducks_sent()
        drawn: list[SessionSecrets] = []
        draw = SessionSecrets.draw

        def keep(layouts) -> SessionSecrets:
            drawn.append(draw(layouts))
            return drawn[-1]

        with mock.patch.object(SessionSecrets, "draw", keep):
            self.udp = UdpFabric(self.roster, self.model.plan, flock.keys, deadline_s=20.0, control_timeout_s=20.0)
        hosts = [layout.domain.host_address for layout in self.udp._layouts]
        self.targets = list(zip(hosts, self.udp._native.ports(), strict=True))
        self.spoofers = [Spoofer(target) for target in self.targets]
        self.rogue: Rogue | None = None
        self.rogue_target = 0
        if is_authentic:
            owing = {chunk.slice for chunk in self.model.plan.chunks if chunk.layer == 0}
            (rank,) = {0, 1, 2} - owing
            for i, layout in enumerate(self.udp._layouts):
                secret = drawn[0].domains[i]
                for duck, key, key_id in zip(layout.ducks, secret.ducks, secret.duck_ids, strict=True):
                    if duck.rank == rank:
                        source = (duck.address, duck.data_port)
                        self.rogue = Rogue(self.udp.tag_algorithm, key, key_id, rank, source)
                        self.rogue_target = i
        self.current: list[Datagram] = []
        self.open_request: Ticket | None = None  # of lane 1
        self.thrown = [0] * len(self.targets)
        self.forwards = 0

    def run(self, count: int) -> None:
        while count > 0:
            batch = min(BATCH, count)
            self._capture()
            thrower = threading.Thread(target=self._throw, args=(batch, random.Random(self.rng.getrandbits(64))))
            thrower.start()
            while thrower.is_alive():
                self._forward()
            thrower.join()
            self._forward()
            count -= batch
        self._account()

    def close(self) -> None:
        self.udp.close()
        for spoofer in self.spoofers:
            spoofer.close()

    def _forward(self, layer: int | None = None) -> None:
        """The bits of LocalFabric, whatever else arrives."""
        if layer is None:
            layer = 0 if self.rogue else self.soak.inputs_rng.randrange(3)
        inputs = self.model.inputs(layer, self.soak.inputs_rng.choice((1, 2, 9)), self.soak.inputs_rng.randrange(50))
        got, expected = np.full_like(inputs[0], np.nan), np.empty_like(inputs[0])
        self.udp.wait(self.udp.submit(layer, *inputs), got)
        self.soak.local.wait(self.soak.local.submit(layer, *inputs), expected)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32)), f"layer {layer}: other bits"
        self.forwards += 1

    def _capture(self) -> None:
        """Real replies of this session; a rogue also gets a request of lane 1 that stays open."""
        self.current = []
        sniffers = [Sniffer(target) for target in self.targets]
        if self.rogue:
            self.open_request = None  # gives the last one up
            self.open_request = self.udp.submit(1, *self.model.inputs(1, self.rng.choice((1, 9)), 1), lane=1)
        self._forward()
        if self.rogue:
            time.sleep(0.002)
        for sniffer in sniffers:
            with sniffer:
                self.current += sniffer.drain()
        history = self.soak.history
        history += self.current[:20]
        while len(history) > 500:
            history.pop(self.rng.randrange(len(history)))

    def _throw(self, count: int, rng: random.Random) -> None:
        for _ in range(count):
            target = rng.randrange(len(self.targets))
            if self.rogue is not None and rng.random() < 0.7:
                target = self.rogue_target
                payload, source = self._authentic(rng, self.rogue), self.rogue.source
            else:
                payload, source = self._blind(rng)
            if self.spoofers[target].send(payload[:MAX_PAYLOAD], source):
                self.thrown[target] += 1

    def _blind(self, rng: random.Random) -> Datagram:
        payload, source = rng.choice(self.current if self.current and rng.random() < 0.7 else self.soak.history)
        choice = rng.random()
        if choice < 0.7:
            payload = mutate(rng, payload)
            if choice < 0.3 and len(payload) > HEADER_BYTES:  # else nearly all would fail by their length alone
                raw = bytearray(payload)
                struct.pack_into("<I", raw, AT["fragment_bytes"], len(raw) - HEADER_BYTES)
                if choice < 0.2:  # else nearly all of the rest would be replays
                    struct.pack_into("<Q", raw, AT["sequence"], rng.choice((0, 1, 1 << 20, 1 << 63, (1 << 64) - 1)))
                payload = bytes(raw)
        elif choice < 0.75:
            payload += rng.choice(self.soak.history)[0]
        elif choice < 0.8:
            payload = payload[: rng.randrange(len(payload) + 1)]
        elif choice < 0.85:
            payload = rng.randbytes(rng.randrange(3000))
        # else replayed as it is
        if rng.random() < 0.15:
            source = (
                f"127.{rng.randrange(1, 250)}.{rng.randrange(256)}.{rng.randrange(1, 255)}",
                rng.randrange(1, 65536),
            )
        elif rng.random() < 0.05:
            source = (source[0], rng.randrange(1, 65536))
        return payload, source

    def _authentic(self, rng: random.Random, rogue: Rogue) -> bytes:
        raw = bytearray(rng.choice(self.current or self.soak.history)[0])
        rogue.claim(raw)
        kind = rng.choice(KINDS_FROM_DUCKS)
        if kind != DataKind.REPLY:
            ranges = [
                Range(rng.randrange(40) * 64, rng.choice((0, 64, 448, 0xFFFFFFFF))) for _ in range(rng.randrange(4))
            ]
            raw[HEADER_BYTES:] = b"".join(r.pack() for r in ranges) if kind == DataKind.NACK_REQUEST else b""
            struct.pack_into("<II", raw, AT["message_bytes"], len(raw) - HEADER_BYTES, 0)
        raw[AT["kind"]] = kind
        if rng.random() < 0.5:
            struct.pack_into("<H", raw, AT["slice"], rng.choice((0, 1, 2, 0xFFFF)))
        if rng.random() < 0.7:
            raw = bytearray(mutate(rng, bytes(raw)))
        if len(raw) < HEADER_BYTES:
            return bytes(raw)
        if rng.random() < 0.9:
            struct.pack_into("<I", raw, AT["fragment_bytes"], len(raw) - HEADER_BYTES)
            rogue.claim(raw)
        return rogue.seal(raw)

    def _ducks_sent(self) -> int:
        sent = 0
        for entry in self.roster.entries:
            with self.soak.flock.control(entry) as client:
                sent += client.stats()["data"]["datagrams_sent"]
        return sent

    def _account(self) -> None:
        """What was sent to the host is what it received or the kernel dropped; what is not the ducks' was dropped."""
        lost = 0
        for _ in range(200):
            self._forward()
            time.sleep(0.005)
            stats = self.udp.stats()
            received = sum(domain["received_datagrams"] for domain in stats["domains"])
            lost = sum(kernel_drops(*target) for target in self.targets)
            arrived = sum(self.thrown) + self._ducks_sent() - self.sent_before
            if received + lost == arrived:
                break
        assert received + lost == arrived, f"{received} received, {lost} lost in the kernel, {arrived} sent"
        drops = sum(stats["drops"].values())
        replies = sum(duck["replies"] for duck in stats["ducks"])
        assert drops <= received - replies
        if self.rogue is None:
            assert drops >= sum(self.thrown) - lost, f"{sum(self.thrown)} thrown, {drops} dropped"
        self.soak.drops.update({kind: n for kind, n in stats["drops"].items() if n})
        self.soak.thrown += sum(self.thrown)
        self.soak.forwards += self.forwards
        self.soak.kernel_drops += lost


class ControlSoak:
    """Mutated answers of a lying duck: under the seal, over it, and without one."""

    TIMEOUT_S = 0.3
    SLACK_S = 10.0  # a loaded machine is no failure

    def __init__(self, keys: FleetKeys, rng: random.Random) -> None:
        self.keys, self.rng = keys, rng
        self.outcomes: Counter[str] = Counter()
        self.mutated = 0
        self._duck_rng = random.Random(rng.getrandbits(64))  # used by the duck's thread
        self._is_keyed = self._frame_changed = False
        self._served = 0
        self._may_hang = True

    def run(self, count: int) -> None:
        end = self.mutated + count
        while self.mutated < end:
            self._is_keyed = self._served % 3 != 1
            self._served += 1
            keys = self.keys if self._is_keyed else None
            with LyingDuck("127.23.7.101", keys, self._frame, self._stream) as duck:
                until = min(end, self.mutated + MESSAGES_OF_DUCK)
                while self.mutated < until:
                    self._connection(duck.port, keys)
            assert duck.failure is None, repr(duck.failure)

    def _connection(self, port: int, keys: FleetKeys | None) -> None:
        """Requests until one ends it."""
        started = time.monotonic()
        what = "connect"
        self._may_hang = True
        try:
            with ControlClient("127.23.7.101", port, keys, self.TIMEOUT_S, name="liar") as client:
                for _ in range(self.rng.randrange(1, 20)):
                    what, ask = self.rng.choice(self._questions(client))
                    self._may_hang = what not in ("probe", "put_chunk")
                    started = time.monotonic()
                    ask()
                    self.outcomes["answered"] += 1
        except MachineError as error:
            assert "liar" in str(error), f"{what}: {error!r} does not name the duck"
            self.outcomes[type(error).__name__] += 1
        took_s = time.monotonic() - started
        assert took_s < self.TIMEOUT_S + self.SLACK_S, f"{what} took {took_s} s"

    def _questions(self, client: ControlClient) -> list[tuple[str, Callable[[], object]]]:
        digest = "ab" * 32
        session = SessionConfig(1, 1, 0, 1, "f32", 64, 1, digest, digest, "127.0.0.1", 1)
        return [
            ("identity", client.identity),
            ("have", lambda: client.have([digest] * 5)),
            ("stats", client.stats),
            ("probe", client.probe),
            ("assign", lambda: client.assign(Assignment(1, 0, 1, "f32", 64, 1, digest, (digest,)))),
            ("configure", lambda: client.configure(session)),
            ("put_chunk", lambda: client.put_chunk(digest, bytes(300))),
            ("drop_chunk", lambda: client.drop_chunk(digest)),
        ]

    def _frame(self, request: ControlHeader, _: bytes) -> bytes:
        rng = self._duck_rng
        right_kind, right = RIGHT_ANSWERS.get(ControlType(request.type), (ControlType.OK, b""))
        kind, payload = right_kind, right
        choice = rng.random()
        if choice < 0.1:
            kind, payload = ControlType.ERROR, ErrorReply(rng.randrange(50)).pack() + rng.randbytes(rng.randrange(40))
        elif choice < 0.11:
            payload = rng.choice((b"[", b'{"a":', b"9")) * rng.choice((1000, 150_000))
        elif choice < 0.15:
            kind = rng.choice(list(ControlType))
        if rng.random() < 0.6:
            payload = mutate(rng, payload)[:MAX_CONTROL_PAYLOAD]
        frame = ControlHeader(type=kind, request_id=request.request_id, length=len(payload)).pack() + payload
        if rng.random() < 0.1:
            frame = mutate(rng, frame)
        as_it_should_be = (
            ControlHeader(type=right_kind, request_id=request.request_id, length=len(right)).pack() + right
        )
        self._frame_changed = frame != as_it_should_be
        return frame

    def _stream(self, data: bytes) -> tuple[bytes, bool]:
        """A tenth is changed on the wire. What may leave the client waiting mostly ends the connection."""
        rng = self._duck_rng
        sent = mutate(rng, data) if rng.random() < 0.1 else data
        changed = self._frame_changed
        self._frame_changed = False
        self.mutated += changed or sent != data
        if sent != data or (changed and not self._is_keyed):
            return sent, not self._may_hang or rng.random() < 0.99
        return sent, rng.random() < 0.02


IDENTITY = IdentityReply(
    *(1, 0, 1, 0, 3, 1, 1, 1, 64, 1, 1, 4096, 7, 9, 1 << 30, 1 << 29, 1, 1, 5000, 7, 7),
    model_digest=bytes(32),
    shard_digest=bytes(32),
    kernels="avx2",
    duckd_version="1",
    hostname="liar",
).pack()
STATS = json.dumps({"data": {"drops": {"bad_tag": 3}, "overrun": 0}, "control": {"refused": 1.5}}).encode()


RIGHT_ANSWERS = {
    ControlType.IDENTITY: (ControlType.IDENTITY_REPLY, IDENTITY),
    ControlType.HAVE: (ControlType.HAVE_REPLY, bytes((1, 0, 1, 1, 0))),
    ControlType.STATS: (ControlType.STATS_REPLY, STATS),
    ControlType.PROBE: (ControlType.PROBE_REPLY, STATS),
}


@dataclasses.dataclass(frozen=True)
class SoakResult:
    """What a soak saw."""

    seed: int
    datagrams: int
    messages: int
    seconds: float
    sessions: int
    forwards: int
    kernel_drops: int
    drops: dict[str, int]
    outcomes: dict[str, int]
    growth_bytes: int


def soak(directory: Path, seed: int, datagrams: int, messages: int) -> SoakResult:
    """Raises AssertionError for a leak, wrong bits, an untyped error or a wrong account."""
    rng = random.Random(seed)
    started = time.monotonic()
    with DuckFlock(directory, [3, 1], mtu=1500) as flock:
        data = DatagramSoak(flock, random.Random(rng.getrandbits(64)))
        control = ControlSoak(FleetKeys.generate(), random.Random(rng.getrandbits(64)))
        data.run(datagrams // 10)
        control.run(messages // 10)
        before = resident_bytes()
        data.run(datagrams - datagrams // 10)
        control.run(messages - messages // 10)
        growth = resident_bytes() - before
        assert all(duck.process is not None and duck.process.poll() is None for duck in flock.ducks)
        assert growth < MAX_GROWTH_BYTES, f"resident memory grew by {growth} bytes"
    return SoakResult(
        seed,
        data.thrown,
        control.mutated,
        time.monotonic() - started,
        data.sessions,
        data.forwards,
        data.kernel_drops,
        dict(data.drops),
        dict(control.outcomes),
        growth,
    )


if __name__ == "__main__":
    run_soak(sys.argv[1:], __doc__, soak)
