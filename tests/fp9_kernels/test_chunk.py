"""Logical chunks: their bytes, their digests, and what a parser must refuse."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duckfleet.fp9_kernels import FORMATS, ChunkSection, Quantized, Shard, chunk_digest, encode_chunk, quantize


def sample(format: str = "fp9", hidden: int = 20, num_experts: int = 2, num_cols: int = 16) -> bytes:
    rng = np.random.default_rng(5)
    sections = []
    for expert in range(num_experts):
        gate, up = (quantize(rng.standard_normal((160, hidden)).astype(np.float32), format) for _ in range(2))
        down = quantize(rng.standard_normal((hidden, 160)).astype(np.float32), format)
        c0, c1 = 112, 112 + num_cols
        sections.append(ChunkSection(expert, c0, gate.rows(c0, c1), up.rows(c0, c1), down.cols(c0, c1)))
    return encode_chunk(3, 4, 5, hidden, 160, format, sections)


def body_bytes(format: str, hidden: int, col0: int, num_cols: int) -> int:
    weights = hidden * num_cols
    codes = {"f32": 4 * weights, "bf16": 2 * weights, "e4m3": weights, "fp9": weights + (weights + 7) // 8}[format]
    tiles = (-(-(col0 + num_cols) // 128) - col0 // 128) * -(-hidden // 128) if format in ("e4m3", "fp9") else 0
    return 3 * (codes + 4 * tiles)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("num_cols", [0, 16, 48])
def test_bytes_are_as_documented(format: str, num_cols: int) -> None:
    chunk = sample(format, 20, 2, num_cols)
    magic, version, fmt, zero, layer, hidden, sections, slice_, part, inter = struct.unpack_from("<4sHBBIIIHHI", chunk)
    assert (magic, version, fmt, zero) == (b"DFCK", 1, FORMATS.index(format), 0)
    assert (layer, hidden, sections, slice_, part, inter) == (3, 20, 2, 4, 5, 160)
    assert chunk[28:64] == bytes(36)
    each = 16 + (body_bytes(format, 20, 112, num_cols) if num_cols else 0)
    assert len(chunk) == 64 + 2 * each
    assert struct.unpack_from("<IIII", chunk, 64 + each) == (1, 112, num_cols, 0)
    assert Shard().add_chunk(chunk) == (3, 4, 5)


def test_fp9_signs_follow_the_bodies() -> None:
    codes = np.zeros((16, 17), np.uint8)
    signs = np.zeros((16, 17), np.uint8)
    signs[1, 3] = 1  # weight 20 of the row-major order
    ones = np.ones((1, 1), np.float32)
    gate = Quantized("fp9", codes, signs, ones)
    plain = Quantized("fp9", codes, np.zeros_like(signs), ones)
    down = Quantized("fp9", codes.T.copy(), np.zeros((17, 16), np.uint8), ones)
    chunk = encode_chunk(0, 0, 0, 17, 16, "fp9", [ChunkSection(0, 0, gate, plain, down)])
    sign_plane = chunk[80 + 272 : 80 + 272 + 34]
    assert sign_plane == bytes(2) + b"\x10" + bytes(31)


def test_digest_is_blake2b_256() -> None:
    chunk = sample()
    assert chunk_digest(chunk) == hashlib.blake2b(chunk, digest_size=32).hexdigest()
    assert len(chunk_digest(chunk)) == 64


@pytest.mark.parametrize(("name", "place"), [("gate", 0), ("up", 1), ("down", 2)])
@pytest.mark.parametrize("format", FORMATS)
def test_a_code_that_is_no_number_is_named(format: str, name: str, place: int) -> None:
    hidden, num_cols = 20, 16
    chunk = bytearray(sample(format, hidden, 2, num_cols))
    each = body_bytes(format, hidden, 112, num_cols)
    scale_bytes = 12 if format in ("e4m3", "fp9") else 0
    matrix_bytes = (each - scale_bytes) // 3
    row, col = 7, 11
    width = {"f32": 4, "bf16": 2}.get(format, 1)
    cols = num_cols if name == "down" else hidden
    at = 64 + 16 + each + 16 + place * matrix_bytes + (row * cols + col) * width
    chunk[at : at + width] = {"f32": b"\0\0\xc0\x7f", "bf16": b"\x80\x7f", "e4m3": b"\x7f", "fp9": b"\xf9"}[format]
    with pytest.raises(ValueError, match=f"^{name} of expert 1, row 7, column 11: not a finite {format} number$"):
        Shard().add_chunk(bytes(chunk))


def test_a_scale_that_is_no_number_is_named() -> None:
    chunk = bytearray(sample("e4m3", num_experts=1))
    chunk[-4:] = struct.pack("<f", float("inf"))
    with pytest.raises(ValueError, match=r"^down of expert 0: scale 0 is not finite$"):
        Shard().add_chunk(bytes(chunk))


HEADER_FAULTS = [
    (0, b"XFCK", "magic"),
    (4, b"\x02\0", "version 2 is unknown"),
    (6, b"\x04", "format id 4 is unknown"),
    (7, b"\x01", "byte 7"),
    (12, struct.pack("<I", 0), "hidden size 0"),
    (12, struct.pack("<I", 65537), "hidden size 65537"),
    (12, struct.pack("<I", 65536), "ends inside expert 0"),
    (16, struct.pack("<I", 4097), "over the limit of 4096"),
    (16, struct.pack("<I", 3), "ends inside the header of section 2"),
    (16, struct.pack("<I", 1), "bytes follow the chunk's last section"),
    (63, b"\x01", "byte 63"),
    (64, struct.pack("<I", 65536), "id is over 65535"),
    (64, struct.pack("<I", 1), "ids must ascend"),
    (68, struct.pack("<I", 8), "multiples of 16"),
    (68, struct.pack("<I", 0xFFFFFFF0), "reach past"),
    (72, struct.pack("<I", 17), "multiples of 16"),
    (72, struct.pack("<I", 0xFFFFFFF0), "reach past"),
    (72, struct.pack("<I", 1 << 20), "reach past"),
    (72, struct.pack("<I", 1 << 19), "ends inside expert 0"),
    (76, b"\x01", "reserved field of section 0"),
]


@pytest.mark.parametrize(("at", "bytes_", "message"), HEADER_FAULTS)
def test_each_fault_has_its_message(at: int, bytes_: bytes, message: str) -> None:
    chunk = bytearray(sample())
    chunk[at : at + len(bytes_)] = bytes_
    with pytest.raises(ValueError, match=message):
        Shard().add_chunk(bytes(chunk))


@pytest.mark.parametrize("format", FORMATS)
def test_every_truncation_and_any_tail_is_refused(format: str) -> None:
    chunk = sample(format, hidden=3, num_experts=2)
    shard = Shard()
    for length in range(len(chunk)):
        with pytest.raises(ValueError, match=r"shorter than its header|ends inside"):
            shard.add_chunk(chunk[:length])
    with pytest.raises(ValueError, match="1 bytes follow"):
        shard.add_chunk(chunk + b"\0")
    shard.add_chunk(chunk)


@settings(deadline=None, max_examples=300)
@given(
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.none() | st.integers(0, 2000),
    format=st.sampled_from(FORMATS),
)
@example(edits=[(72, 0), (73, 0)], cut=None, format="f32")
def test_mutated_chunks_give_an_error_or_a_chunk(edits: list[tuple[int, int]], cut: int | None, format: str) -> None:
    chunk = bytearray(sample(format))
    for at, value in edits:
        chunk[at] = value
    data = bytes(chunk if cut is None else chunk[:cut])
    try:
        Shard().add_chunk(data)
    except ValueError as error:
        assert str(error)


@settings(deadline=None, max_examples=200)
@given(tail=st.binary(max_size=300))
def test_arbitrary_bytes_after_a_good_start(tail: bytes) -> None:
    for start in (b"", b"DFCK\x01\0\x02\0", sample()[:64]):
        with pytest.raises(ValueError, match=r"."):
            Shard().add_chunk(start + tail)


def test_a_chunk_that_would_swell_when_packed_is_refused() -> None:
    """hidden = 1 fills 15 of 16 rows and columns: 2^28 bytes of it would take 2^32 packed."""
    num_cols = (1 << 20) - 16
    weights = bytes(num_cols)
    sections = b"".join(
        struct.pack("<IIII", e, 0, num_cols, 0) + 3 * weights + 3 * ((num_cols + 127) // 128) * struct.pack("<f", 1)
        for e in range(12)
    )
    header = struct.pack("<4sHBBIIIHHI36x", b"DFCK", 1, 2, 0, 0, 1, 12, 0, 0, num_cols)
    with pytest.raises(ValueError, match="would take"):
        Shard().add_chunk(header + sections)


def test_encoding_checks_what_it_is_given() -> None:
    rng = np.random.default_rng(5)
    w = quantize(rng.standard_normal((32, 20)).astype(np.float32), "e4m3")
    down = quantize(rng.standard_normal((20, 32)).astype(np.float32), "e4m3")

    def encode(*sections: ChunkSection, format: str = "e4m3", hidden: int = 20) -> bytes:
        return encode_chunk(0, 0, 0, hidden, 32, format, sections)

    good = ChunkSection(1, 0, w, w, down)
    encode(good)
    with pytest.raises(ValueError, match="ids must ascend"):
        encode(good, good)
    with pytest.raises(ValueError, match="multiples of 16"):
        encode(ChunkSection(0, 0, w.rows(0, 8), w.rows(0, 8), down.cols(0, 8)))
    with pytest.raises(ValueError, match="gate of expert 1 is e4m3"):
        encode(good, format="fp9")
    with pytest.raises(ValueError, match=r"down of expert 0 is e4m3 \[20, 16\]"):
        encode(ChunkSection(0, 0, w, w, down.cols(0, 16)))
    with pytest.raises(ValueError, match="its scales would not fit"):
        encode(ChunkSection(0, 0, w.rows(16, 32), w.rows(16, 32), down.cols(16, 32)))
