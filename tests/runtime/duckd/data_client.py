"""The host's side of the data plane in plain Python, with tags by another library: slow, independent of the fabric."""

from __future__ import annotations

import dataclasses
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from duckfleet.runtime.control import Assignment, SessionConfig
from duckfleet.runtime.wire import (
    ANY_RANK,
    AS_ASSIGNED,
    DataHeader,
    DataKind,
    Direction,
    Range,
    TagAlgorithm,
    WireDtype,
)

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

HEADER_BYTES = DataHeader.num_bytes()
TAG = slice(HEADER_BYTES - 16, HEADER_BYTES)
CIPHERS = {TagAlgorithm.AES256_GMAC: AESGCM, TagAlgorithm.CHACHA20_POLY1305: ChaCha20Poly1305}


class TagKey:
    """Seals and verifies datagrams by `cryptography`, as docs/wire.md says."""

    def __init__(self, algorithm: TagAlgorithm, key: bytes, key_id: int) -> None:
        self._cipher = CIPHERS[algorithm](key) if algorithm != TagAlgorithm.NONE else None
        self.key_id = key_id
        self.sequence = 0

    def seal(self, header: DataHeader, payload: bytes, sequence: int | None = None) -> bytes:
        if self._cipher is None:
            return header.pack() + payload
        self.sequence += 1
        header = dataclasses.replace(
            header, key_id=self.key_id, sequence=self.sequence if sequence is None else sequence, tag=bytes(16)
        )
        nonce = struct.pack("<IQ", Direction.HOST_TO_DUCK, header.sequence)
        tag = self._cipher.encrypt(nonce, b"", header.pack() + payload)
        return dataclasses.replace(header, tag=tag).pack() + payload

    def is_authentic(self, datagram: bytes) -> bool:
        if self._cipher is None:
            return True
        header = DataHeader.unpack(datagram[:HEADER_BYTES])
        zeroed = bytearray(datagram)
        zeroed[TAG] = bytes(16)
        nonce = struct.pack("<IQ", Direction.DUCK_TO_HOST, header.sequence)
        try:
            self._cipher.decrypt(nonce, header.tag, bytes(zeroed))
        except InvalidTag:
            return False
        return header.key_id == self.key_id


def to_wire_dtype(x: F32, dtype: str) -> bytes:
    if dtype == "f16":
        return x.astype(np.float16).tobytes()
    if dtype == "bf16":
        return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # truncates: exact only for bf16 values
    return x.tobytes()


def request_payload(x: F32, experts: U32 | None, weights: F32 | None, dtype: str = "f32") -> bytes:
    routes = b""
    if experts is not None:
        assert weights is not None
        pairs = np.empty(experts.shape, dtype=[("expert", "<u4"), ("weight", "<f4")])
        pairs["expert"], pairs["weight"] = experts, weights
        routes = pairs.tobytes()
    return routes + to_wire_dtype(x, dtype)


@dataclass
class DataClient:
    """A host with one duck. `replies` and the rest of what came back are kept by `receive`."""

    duck: tuple[str, int]
    host_address: str
    assignment: Assignment
    algorithm: TagAlgorithm = TagAlgorithm.CHACHA20_POLY1305
    wire_dtype: str = "f32"
    generation: int = 1
    fragment_bytes: int = 448
    reply_fragment_bytes: int = 448
    pace_bytes_per_s: int = 0
    session: int = field(default_factory=lambda: secrets.randbits(63) | 1)
    inbox: list[tuple[DataHeader, bytes]] = field(default_factory=list)
    num_bad_tags: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.socket.bind((self.host_address, 0))
        self._domain_bytes, self._duck_bytes = secrets.token_bytes(32), secrets.token_bytes(32)
        self.domain_key = TagKey(self.algorithm, self._domain_bytes, 1)
        self.duck_key = TagKey(self.algorithm, self._duck_bytes, 2)

    def close(self) -> None:
        self.socket.close()

    def session_config(self) -> SessionConfig:
        a = self.assignment
        return SessionConfig(
            session=self.session,
            generation=self.generation,
            rank=a.rank,
            tp=a.tp,
            format=a.format,
            hidden=a.hidden,
            num_layers=a.num_layers,
            model_digest=a.model_digest,
            shard_digest=a.shard_digest,
            host_address=self.host_address,
            host_port=self.socket.getsockname()[1],
            wire_dtype=self.wire_dtype,
            tag_algorithm=self.algorithm,
            domain_key_id=1,
            duck_key_id=2,
            domain_key=self._domain_bytes,
            duck_key=self._duck_bytes,
            reply_fragment_bytes=self.reply_fragment_bytes,
            pace_bytes_per_s=self.pace_bytes_per_s,
        )

    def header(self, kind: DataKind, **fields: int) -> DataHeader:
        base = DataHeader(
            kind=kind,
            session=self.session,
            generation=self.generation,
            wire_dtype=WireDtype[self.wire_dtype.upper()],
            slice=AS_ASSIGNED,
            rank=ANY_RANK,
            hidden=self.assignment.hidden,
        )
        return dataclasses.replace(base, **fields)  # type: ignore[arg-type]

    def fragments(
        self,
        step: int,
        layer: int,
        x: F32,
        experts: U32 | None = None,
        weights: F32 | None = None,
        **fields: int,
    ) -> list[tuple[DataHeader, bytes]]:
        """Unsealed fragments of a request, in order."""
        message = request_payload(x, experts, weights, self.wire_dtype)
        header = self.header(
            DataKind.REQUEST,
            step=step,
            layer=layer,
            num_tokens=x.shape[0],
            top_k=0 if experts is None else experts.shape[1],
            message_bytes=len(message),
        )
        header = dataclasses.replace(header, **fields)  # type: ignore[arg-type]
        cut = []
        for offset in range(0, len(message), self.fragment_bytes):
            piece = message[offset : offset + self.fragment_bytes]
            cut.append((dataclasses.replace(header, offset=offset, fragment_bytes=len(piece)), piece))
        return cut

    def seal(self, header: DataHeader, payload: bytes) -> bytes:
        return (self.domain_key if header.rank == ANY_RANK else self.duck_key).seal(header, payload)

    def send(self, fragments: Iterable[tuple[DataHeader, bytes]]) -> list[bytes]:
        sealed = [self.seal(header, payload) for header, payload in fragments]
        for datagram in sealed:
            self.send_raw(datagram)
        return sealed

    def send_raw(self, datagram: bytes) -> None:
        self.socket.sendto(datagram, self.duck)

    def nack_reply(self, step: int, layer: int, ranges: Sequence[Range], slice_: int, part: int, **fields: int) -> None:
        payload = b"".join(r.pack() for r in ranges)
        header = self.header(
            DataKind.NACK_REPLY,
            step=step,
            layer=layer,
            slice=slice_,
            part=part,
            rank=self.assignment.rank,
            message_bytes=len(payload),
            fragment_bytes=len(payload),
        )
        self.send([(dataclasses.replace(header, **fields), payload)])  # type: ignore[arg-type]

    def receive(self, timeout_s: float) -> tuple[DataHeader, bytes] | None:
        """The next authentic datagram; kept in `inbox` too."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left_s)
            try:
                datagram, _ = self.socket.recvfrom(65536)
            except TimeoutError:
                return None
            received = DataHeader.unpack(datagram[:HEADER_BYTES]), datagram[HEADER_BYTES:]
            if received[0].session == 0:
                continue  # an echo outside any session: no tag
            if not self.duck_key.is_authentic(datagram):
                self.num_bad_tags += 1
                continue
            self.inbox.append(received)
            return received
        return None

    def receive_kind(self, kind: DataKind, timeout_s: float = 20.0) -> tuple[DataHeader, bytes]:
        """The next datagram of this kind; others go by."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            received = self.receive(left_s)
            if received is not None and received[0].kind == kind:
                return received
        raise AssertionError(f"no {kind.name} came; there were {[DataKind(h.kind).name for h, _ in self.inbox]}")

    def reply(self, step: int, slice_: int, part: int, timeout_s: float = 20.0) -> F32:
        """The whole vector [num_tokens, hidden] of one reply, from fragments that come in any order."""
        pieces: dict[int, bytes] = {}
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            received = self.receive(left_s)
            if received is None:
                break
            header, payload = received
            if header.kind != DataKind.REPLY or (header.step, header.slice, header.part) != (step, slice_, part):
                continue
            pieces[header.offset] = payload
            if sum(map(len, pieces.values())) == header.message_bytes:
                message = b"".join(pieces[offset] for offset in sorted(pieces))
                return np.frombuffer(message, np.float32).reshape(header.num_tokens, header.hidden)
        raise AssertionError(f"no whole reply to step {step} came; there were {len(pieces)} fragments")
