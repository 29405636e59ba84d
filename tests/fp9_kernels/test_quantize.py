"""Rounding against a slow nearest-value search, exact conversions, and pieces among the tiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckfleet.fp9_kernels import NotFiniteError, Quantized, quantize
from duckfleet.fp9_kernels.oracle import E4M3, FP9, code_values, scale_values
from duckfleet.fp9_kernels.quantized import decode_table


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The nearest magnitude of the format (even code on a tie), saturating, with the value's sign."""
    half = table[: len(table) // 2]
    half = half[np.isfinite(half)]
    distance = np.abs(np.abs(values)[..., None].astype(np.float64) - half)
    best = distance.min(-1, keepdims=True)
    tied = distance == best
    even = np.arange(len(half)) % 2 == 0
    index = np.where((tied & even).any(-1), (tied & even).argmax(-1), tied.argmax(-1))
    return np.copysign(half[index], values)


@pytest.mark.parametrize(("format", "table"), [("e4m3", E4M3), ("fp9", FP9)])
def test_codes_are_the_nearest_ties_to_even(rng: np.random.Generator, format: str, table: np.ndarray) -> None:
    finite = np.sort(np.abs(table[: len(table) // 2][np.isfinite(table[: len(table) // 2])]))
    finite = finite[finite <= 448]
    midpoints = (finite[1:] + finite[:-1]) / 2
    edges = np.concatenate([finite, midpoints, np.nextafter(midpoints, 0), np.nextafter(midpoints, 1e9)])
    values = np.concatenate([edges, -edges, rng.standard_normal(500) * 10, rng.uniform(-1e-3, 1e-3, 200), [448.0]])
    w = values.astype(np.float32).reshape(1, -1)
    w = np.pad(w, ((0, 0), (0, -w.shape[1] % 128)))
    w[:, ::128] = 448.0  # amax of each tile, so that scales are 1 and weights are their own quotients
    q = quantize(w, format)
    assert q.scales is not None and (q.scales == 1).all()
    np.testing.assert_array_equal(code_values(q), nearest(w, table))


@pytest.mark.parametrize("format", ["e4m3", "fp9"])
def test_scale_is_amax_over_448_of_each_tile(rng: np.random.Generator, format: str) -> None:
    w = (rng.standard_normal((130, 300)) * np.exp(rng.standard_normal((130, 300)))).astype(np.float32)
    w[128:, 256:] = 0
    q = quantize(w, format)
    assert q.scales is not None and q.scales.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            amax = np.abs(w[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]).max()
            assert q.scales[i, j] == (np.float32(amax) / np.float32(448) if amax else 1)
    quotient = w / scale_values(q).astype(np.float32)
    np.testing.assert_array_equal(code_values(q), nearest(quotient, E4M3 if format == "e4m3" else FP9))
    np.testing.assert_array_equal(q.dequantize(), (code_values(q) * scale_values(q)).astype(np.float32))


def test_a_tile_too_small_for_a_scale_has_scale_one() -> None:
    q = quantize(np.full((2, 2), 1e-45, np.float32), "e4m3")
    assert q.scales is not None and q.scales[0, 0] == 1
    assert (q.dequantize() == 0).all()


def test_bf16_rounds_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000, 0x00000001, 0x7F7F0000], np.uint32)
    q = quantize(bits.view(np.float32).reshape(1, -1), "bf16")
    assert q.codes.tolist() == [[0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF80, 0x0000, 0x7F7F]]


def test_f32_is_lossless(rng: np.random.Generator) -> None:
    w = rng.standard_normal((3, 5)).astype(np.float32)
    assert quantize(w, "f32").dequantize().tobytes() == w.tobytes()


@pytest.mark.parametrize("format", ["f32", "bf16", "e4m3", "fp9"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(format: str, value: float) -> None:
    w = np.ones((140, 150), np.float32)
    w[137, 149] = value
    with pytest.raises(NotFiniteError, match="row 137, column 149"):
        quantize(w, format)


def test_every_finite_e4m3_is_exact_in_fp9() -> None:
    codes = np.flatnonzero(np.isfinite(E4M3)).astype(np.uint8).reshape(1, -1)
    q = Quantized.from_e4m3(codes, np.array([[0.5, 3.0]], np.float32))
    same = q.as_format("fp9")
    assert same.format == "fp9"
    assert same.dequantize().tobytes() == q.dequantize().tobytes()


def test_as_format_refuses_nan_and_lossy() -> None:
    q = Quantized.from_e4m3(np.array([[0, 0xFF]], np.uint8), np.ones((1, 1), np.float32))
    with pytest.raises(NotFiniteError, match="row 0, column 1"):
        q.as_format("fp9")
    with pytest.raises(ValueError, match="without loss"):
        quantize(np.ones((2, 2), np.float32), "f32").as_format("e4m3")
    bf16 = quantize(np.full((2, 2), 1.5, np.float32), "bf16")
    assert bf16.as_format("f32").dequantize().tolist() == [[1.5, 1.5], [1.5, 1.5]]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), format=st.sampled_from(["f32", "bf16", "e4m3", "fp9"]))
def test_pieces_keep_their_place(data: st.DataObject, format: str) -> None:
    """A piece of a piece dequantizes to that piece of the whole, whatever the borders."""
    rng = np.random.default_rng(3)
    whole = quantize(rng.standard_normal((200, 300)).astype(np.float32), format)
    want, piece = whole.dequantize(), whole
    for _ in range(2):
        r = sorted(data.draw(st.tuples(*[st.integers(0, piece.shape[0])] * 2)))
        c = sorted(data.draw(st.tuples(*[st.integers(0, piece.shape[1])] * 2)))
        piece, want = piece.rows(*r).cols(*c), want[r[0] : r[1], c[0] : c[1]]
    np.testing.assert_array_equal(piece.dequantize(), want)
    rows, cols = (data.draw(st.integers(n, n + 200)) for n in piece.shape)
    padded = piece.pad_rows(rows).pad_cols(cols).dequantize()
    np.testing.assert_array_equal(padded, np.pad(want, ((0, rows - want.shape[0]), (0, cols - want.shape[1]))))


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown"):
        quantize(np.ones((2, 2), np.float32), "fp4")
    with pytest.raises(ValueError, match="unknown"):
        Quantized("fp4", np.ones((2, 2), np.uint8))
    with pytest.raises(ValueError, match="scales must be"):
        Quantized.from_e4m3(np.zeros((129, 2), np.uint8), np.ones((1, 1), np.float32))
    with pytest.raises(ValueError, match=r"columns 3\.\.1"):
        quantize(np.ones((2, 4), np.float32), "f32").cols(3, 1)
    with pytest.raises(ValueError, match="fewer"):
        quantize(np.ones((2, 4), np.float32), "f32").pad_cols(3)


def test_decode_table_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decode_table("fp9")[0] = 1
