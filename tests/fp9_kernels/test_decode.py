"""Every code of every format, on every implementation, against the oracle's reading of the definition."""

import numpy as np
import pytest

from duckfleet.fp9_kernels import NotFiniteError, PackedMatrix, Quantized, _kernels
from duckfleet.fp9_kernels.oracle import E4M3, FP9
from duckfleet.fp9_kernels.quantized import decode_table


def matrix_of_all_codes(format: str, num_copies: int = 1) -> Quantized:
    """[1, every finite code], each once a copy, rotated so that a code meets every row and column of a block."""
    finite = np.flatnonzero(np.isfinite(E4M3 if format == "e4m3" else FP9))
    rows = np.stack([np.roll(finite, 7 * i) for i in range(num_copies)])
    codes = (rows & 0xFF).astype(np.uint8)
    signs = (rows >> 8).astype(np.uint8) if format == "fp9" else None
    scales = np.ones(((rows.shape[0] + 127) // 128, (rows.shape[1] + 127) // 128), np.float32)
    return Quantized(format, codes, signs, scales)


def codes_of(q: Quantized) -> np.ndarray:
    return q.codes.astype(int) + (0 if q.signs is None else 256 * q.signs.astype(int))


@pytest.mark.parametrize(("format", "num_codes", "oracle"), [("e4m3", 256, E4M3), ("fp9", 512, FP9)])
def test_table_has_every_code(format: str, num_codes: int, oracle: np.ndarray) -> None:
    table = decode_table(format)
    assert table.shape == (num_codes,)
    np.testing.assert_array_equal(table.astype(np.float64), oracle)
    assert (np.signbit(table) == np.signbit(oracle))[np.isfinite(oracle)].all()


@pytest.mark.parametrize(("format", "oracle"), [("e4m3", E4M3), ("fp9", FP9)])
def test_unpack_gives_every_code_its_value(impl: str, format: str, oracle: np.ndarray) -> None:
    q = matrix_of_all_codes(format, num_copies=33)
    values = PackedMatrix.pack(q).unpack(impl)
    want = oracle[codes_of(q)].astype(np.float32)
    assert values.tobytes() == want.tobytes()  # to the bit, -0.0 too


@pytest.mark.parametrize("exponent", [0, -100, 60], ids=["near one", "tiny", "huge"])
@pytest.mark.parametrize("num_tokens", [1, 2, 7])
@pytest.mark.parametrize(("format", "oracle"), [("e4m3", E4M3), ("fp9", FP9)])
def test_gemv_gives_every_code_its_value(
    impl: str, format: str, oracle: np.ndarray, num_tokens: int, exponent: int
) -> None:
    """The decodes inside the sums (in registers or a tile, shifted or exact): one-hot activations pick each code."""
    q = matrix_of_all_codes(format, num_copies=17)
    num_cols = q.shape[1]
    packed = PackedMatrix.pack(q)
    one = np.float32(2.0**exponent)
    for first in range(0, num_cols, num_tokens):
        x = np.zeros((num_tokens, num_cols), np.float32)
        picked = np.arange(first, min(first + num_tokens, num_cols))
        x[picked - first, picked] = one
        y = np.empty((num_tokens, q.shape[0]), np.float32)
        assert _kernels.gemv(packed._native, x, y, impl, 1) == impl
        want = (oracle[codes_of(q)[:, picked]].T * float(one)).astype(np.float32)
        np.testing.assert_array_equal(y[: len(picked)], want)


@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0x0001, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x007F])
def test_bf16_is_the_upper_half_of_f32(impl: str, bits: int) -> None:
    q = Quantized.from_bf16_bits(np.full((3, 21), bits, np.uint16))
    want = np.full((3, 21), bits << 16, np.uint32).view(np.float32)
    assert PackedMatrix.pack(q).unpack(impl).tobytes() == want.tobytes()


NAN_CODES = [("e4m3", code) for code in (0x7F, 0xFF)] + [("fp9", code) for code in (*range(248, 256), *range(504, 512))]


@pytest.mark.parametrize(("format", "code"), NAN_CODES)
def test_nan_codes_are_refused_with_their_position(format: str, code: int) -> None:
    codes = np.zeros((40, 50), np.uint8)
    signs = np.zeros((40, 50), np.uint8) if format == "fp9" else None
    codes[33, 21] = code & 0xFF
    if signs is not None:
        signs[33, 21] = code >> 8
    with pytest.raises(NotFiniteError, match=r"row 33, column 21: not a finite"):
        PackedMatrix.pack(Quantized(format, codes, signs, np.ones((1, 1), np.float32)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", ["f32", "bf16"])
def test_wide_formats_refuse_what_is_not_finite(format: str, value: float) -> None:
    w = np.zeros((5, 6), np.float32)
    w[4, 3] = value
    codes = w if format == "f32" else (w.view(np.uint32) >> 16).astype(np.uint16)
    with pytest.raises(NotFiniteError, match=r"row 4, column 3"):
        PackedMatrix.pack(Quantized(format, codes))
