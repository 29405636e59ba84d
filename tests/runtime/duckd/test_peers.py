"""Chunks from duck to duck: bit by bit what the host would send, and nothing for strangers, whatever a peer does."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from duckfleet.fp9_kernels import FORMATS, chunk_digest
from duckfleet.inventory.errors import MachineError
from duckfleet.runtime.control import DuckRefused, PeerFailed, Ticket
from duckfleet.runtime.wire import (
    ChunkBegin,
    ChunkData,
    ControlHeader,
    ControlType,
    ErrorCode,
    ErrorReply,
    FleetKeys,
    PeerHello,
)
from tests.runtime.duckd.bad_wire import BadWire, straight
from tests.runtime.duckd.conftest import serve
from tests.runtime.duckd.duck_process import CONTROL_PORT, DuckProcess
from tests.runtime.duckd.peer_protocol import Frame, Giver, Sealed, call, frames_of, sends
from tests.runtime.duckd.raw_control import connect
from tests.runtime.duckd.small_model import SmallModel

CHUNK = SmallModel(format="f32", hidden=1024).chunk(1, 0)  # 2.4 MB: several frames
DIGEST = chunk_digest(CHUNK)


@dataclass
class Pair:
    """Two ducks of a fleet: one holds `CHUNK`, the other may fetch it."""

    holder: DuckProcess
    fetcher: DuckProcess

    def offer(self, digest: str = DIGEST) -> Ticket:
        ticket = Ticket.make(digest)
        with self.holder.control() as control:
            control.offer_chunk(ticket)
        return ticket

    def fetch(self, ticket: Ticket, address: str = "", port: int = CONTROL_PORT, silence_s: float = 20.0) -> None:
        with self.fetcher.control() as control:
            control.fetch_chunk(ticket, address or self.holder.address, port, silence_s=silence_s)

    def fails(self, ticket: Ticket, message: str, address: str = "", port: int = CONTROL_PORT, **more: float) -> None:
        """The fetch fails with the peer, the chunk and `message` named, leaves nothing behind, and the next is good."""
        with pytest.raises(PeerFailed, match=message) as caught:
            self.fetch(ticket, address, port, **more)
        assert f"{address or self.holder.address}:{port}" in str(caught.value) and ticket.digest in str(caught.value)
        with self.fetcher.control() as control:
            assert control.have([DIGEST]) == [False]
            assert control.stats()["control"]["chunks_fetched"] == 0

    def is_good(self) -> None:
        """A new ticket gets the chunk."""
        self.fetch(self.offer())
        with self.fetcher.control() as control:
            assert control.have([DIGEST]) == [True]


@pytest.fixture(params=["keyed", "plain"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    keys = FleetKeys.generate() if request.param == "keyed" else None
    stored = ("--store", str(tmp_path / "store"), "--scrub-mib-per-s", "0")
    with DuckProcess(tmp_path / "a", keys, stored) as holder, DuckProcess(tmp_path / "b", keys) as fetcher:
        with holder.control() as control:
            control.put_chunk(DIGEST, CHUNK)
        yield Pair(holder, fetcher)


@pytest.mark.parametrize("format", FORMATS)
def test_a_whole_shard_from_a_peer_computes_the_right_bits(pair: Pair, format: str) -> None:
    model = SmallModel(format=format)
    chunks = model.chunks()
    with pair.holder.control() as control:
        for chunk in chunks:
            control.put_chunk(chunk_digest(chunk), chunk)
    for chunk in chunks:
        pair.fetch(pair.offer(chunk_digest(chunk)))
    with pair.fetcher.control() as control:
        assert control.stats()["control"]["chunks_fetched"] == len(chunks)
    with pair.holder.control() as control:
        assert control.stats()["control"]["chunks_given"] == len(chunks)
    served = serve(pair.fetcher, model)  # sends nothing: all is held
    served.assert_good()
    served.host.close()
    with pair.fetcher.control() as control:
        assert control.stats()["control"]["chunks_stored"] == len(chunks)


def test_what_is_held_is_not_fetched(pair: Pair) -> None:
    ticket = pair.offer()
    pair.fetch(ticket)
    pair.fetch(ticket)
    with pair.fetcher.control() as control:
        assert control.stats()["control"]["chunks_fetched"] == 1


def test_a_ticket_is_good_once(pair: Pair) -> None:
    ticket = pair.offer()
    pair.fetch(ticket)
    with pair.fetcher.control() as control:
        control.drop_chunk(DIGEST)
    with pytest.raises(PeerFailed, match="it closed the connection"):
        pair.fetch(ticket)
    with pair.holder.control() as control:
        assert control.stats()["control"]["auth_failed"] == 1
    pair.is_good()


def test_tickets_that_are_not_good(pair: Pair) -> None:
    good = pair.offer()
    pair.fails(Ticket.make(DIGEST), "it closed the connection")
    pair.fails(replace(good, secret=bytes(32)), "it does not know the ticket's secret")
    pair.fails(replace(good, number=good.number ^ 1), "it closed the connection")
    pair.fetch(good)  # none of these used it up
    with pair.holder.control() as control:
        assert control.stats()["control"]["chunks_given"] == 1


def test_a_stranger_with_the_number_of_a_ticket_gets_nothing_and_takes_nothing_away(pair: Pair) -> None:
    ticket = pair.offer()
    hello = PeerHello(ticket.number, b"\x09" + bytes(31)).pack()
    frame = ControlHeader(type=ControlType.PEER_HELLO, length=len(hello)).pack() + hello
    sealed = struct.pack("<I", 24) + bytes(24) + struct.pack("<I", 40) + bytes(40)
    with connect(pair.holder.address) as sock:
        sock.sendall(frame + sealed)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert len(answer) == 16 + 80  # the reply in clear, and not a byte of a chunk
    pair.fetch(ticket)


def test_a_ticket_opens_no_other_verb(pair: Pair) -> None:
    for kind in [k for k in ControlType if k != ControlType.CHUNK_GET]:
        stream = call(pair.holder.address, pair.offer())
        with stream.sock:
            stream.send(kind, b"")
            answered, payload = stream.receive()
        assert answered == ControlType.ERROR
        assert ErrorReply.unpack(payload[:4]).code == ErrorCode.MALFORMED
        with pair.holder.control() as control:  # alive, and nobody shut it down; the offer stands and goes
            assert control.have([DIGEST]) == [True]
    stream = call(pair.holder.address, pair.offer())
    with stream.sock:
        stream.send(ControlType.CHUNK_GET, b"")
        assert stream.receive() == (ControlType.CHUNK_BEGIN, ChunkBegin(bytes.fromhex(DIGEST), len(CHUNK)).pack())


def test_offers_are_bounded(pair: Pair) -> None:
    with pair.holder.control() as control:
        for _ in range(64):
            control.offer_chunk(Ticket.make(DIGEST), lifetime_s=1)
        with pytest.raises(DuckRefused, match="64 offers already"):
            control.offer_chunk(Ticket.make(DIGEST))
        for lifetime_s in (0, 3601):
            with pytest.raises(DuckRefused, match=f"an offer for {lifetime_s} s"):
                control.offer_chunk(Ticket.make(DIGEST), lifetime_s)


def test_a_chunk_that_the_peer_lacks(pair: Pair) -> None:
    pair.fails(pair.offer("ab" * 32), "it says: chunk abab.* is not held here")
    pair.is_good()


def test_a_flipped_bit_at_the_peer_is_found_before_it_travels(pair: Pair) -> None:
    (file,) = Path(pair.holder.options[1]).glob("*.chunk")
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        (byte,) = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 4]))
    pair.fails(pair.offer(), "is damaged here")
    with pair.holder.control() as control:
        assert control.stats()["scrub"]["damaged_chunks"] == [DIGEST]
        control.put_chunk(DIGEST, CHUNK)
    pair.is_good()


def test_a_peer_that_is_not_there(pair: Pair) -> None:
    with socket.create_server((pair.holder.address, 0)) as listener:
        port = listener.getsockname()[1]
    pair.fails(pair.offer(), "it cannot be reached: Connection refused", port=port)
    pair.is_good()


def test_a_peer_that_is_killed_in_the_middle(pair: Pair) -> None:
    def kill_at_half(passed: int, piece: bytes) -> bytes | None:
        if passed + len(piece) <= len(CHUNK) // 2:
            return piece
        os.kill(pair.holder.pid, signal.SIGKILL)
        return None  # what it had sent ahead goes with it

    with BadWire(pair.holder.address, [straight], kill_at_half) as wire:
        pair.fails(pair.offer(), "it closed the connection", wire.address, wire.port)
    assert pair.holder.wait_for_exit() == -signal.SIGKILL
    pair.holder.start()
    pair.is_good()


def test_bytes_changed_between_ducks(pair: Pair) -> None:
    def flip(passed: int, piece: bytes) -> bytes:
        return piece[:-1] + bytes([piece[-1] ^ 1]) if passed > len(CHUNK) // 2 else piece

    with BadWire(pair.holder.address, [straight], flip) as wire:
        pair.fails(pair.offer(), "what it sent was changed on its way|is no frame", wire.address, wire.port)
    pair.is_good()


def begin(num_bytes: int, digest: str = DIGEST) -> Frame:
    return ControlType.CHUNK_BEGIN, ChunkBegin(bytes.fromhex(digest), num_bytes).pack()


def data(at: int, content: bytes) -> Frame:
    return ControlType.CHUNK_DATA, ChunkData(at).pack() + content


END: Frame = (ControlType.CHUNK_END, b"")
ANSWERS: dict[str, tuple[list[Frame], str]] = {
    "nothing": ([], "it closed the connection"),
    "half": (frames_of(CHUNK, DIGEST)[:3], "it closed the connection"),
    "another bit": (frames_of(CHUNK[:-1] + bytes([CHUNK[-1] ^ 1]), DIGEST), "the bytes have the digest"),
    "another chunk": ([begin(len(CHUNK), "cd" * 32)], "it sends another chunk"),
    "2^60 bytes": ([begin(1 << 60)], "a chunk of 1152921504606846976 bytes"),
    "no bytes": ([begin(0)], "a chunk of 0 bytes"),
    "begun twice": ([begin(100), begin(100)], "frames of type 22 where they make no sense"),
    "not begun": ([data(0, b"x")], "frames of type 23 where they make no sense"),
    "ended at once": ([END], "frames of type 24 where they make no sense"),
    "too early an end": ([begin(100), data(0, bytes(99)), END], "99 of 100 bytes came"),
    "too many bytes": ([begin(100), data(0, bytes(101))], "chunk data at 0 of 101 bytes"),
    "a gap": ([begin(100), data(10, bytes(10))], "chunk data at 10"),
    "no chunk": ([begin(32), data(0, bytes(32)), END], "the bytes have the digest"),
    "no offset": ([begin(100), (ControlType.CHUNK_DATA, b"abc")], "chunk data: the wrong length"),
    "a command": ([(ControlType.SHUTDOWN, bytes(4))], "frames of type 40 where they make no sense"),
    "a refusal": ([(ControlType.ERROR, ErrorReply(43).pack() + b"no room" + bytes(5000))], "it says: no room"),
    "an empty refusal": ([(ControlType.ERROR, b"")], "frames of type 4 where they make no sense"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_peer_that_lies(pair: Pair, name: str) -> None:
    frames, message = ANSWERS[name]
    with Giver(Ticket.make(DIGEST), sends(frames)) as liar:
        pair.fails(liar.ticket, message, liar.address)
        assert liar.asked == [(ControlType.CHUNK_GET, b"")]
    pair.is_good()


@pytest.mark.parametrize("num_frames", [0, 1, 3])
def test_a_peer_that_falls_silent(pair: Pair, num_frames: int) -> None:
    def answer(stream: Sealed) -> None:
        sends(frames_of(CHUNK, DIGEST)[:num_frames])(stream)
        liar.stay_silent(stream)

    with Giver(Ticket.make(DIGEST), answer) as liar:
        pair.fails(liar.ticket, "it fell silent", liar.address, silence_s=0.3)
    pair.is_good()


def test_a_peer_that_trickles_is_given_up(pair: Pair) -> None:
    """Never silent for long, and never done."""
    stop: list[bool] = []

    def answer(stream: Sealed) -> None:
        stream.send(*begin(len(CHUNK)))
        at = 0
        while not stop:
            stream.send(*data(at, bytes(1)))
            at += 1

    with Giver(Ticket.make(DIGEST), answer) as liar, pair.fetcher.control() as control:
        try:
            with pytest.raises(PeerFailed, match="it fell silent"):
                control.fetch_chunk(liar.ticket, liar.address, CONTROL_PORT, limit_s=0.5)
        finally:
            stop.append(True)
    pair.is_good()


def test_a_fetch_does_not_keep_a_duck_from_ending(pair: Pair) -> None:
    def answer(stream: Sealed) -> None:
        os.kill(pair.fetcher.pid, signal.SIGTERM)
        liar.stay_silent(stream)

    with Giver(Ticket.make(DIGEST), answer) as liar:
        with pytest.raises(MachineError):  # the refusal still gets out, or the connection ends
            pair.fetch(liar.ticket, liar.address, silence_s=120)
        assert pair.fetcher.wait_for_exit() == 0
