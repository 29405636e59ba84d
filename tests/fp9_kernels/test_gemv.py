"""Sums of one matrix: bounds against float64, bits against the canonical order, every tail, alignment and batch."""

import numpy as np
import numpy.typing as npt
import pytest

from duckfleet.fp9_kernels import (
    FORMATS,
    PackedMatrix,
    Quantized,
    _kernels,
    implementations,
    oracle,
    quantize,
    selected_implementation,
    tune_prefetch,
)

F32 = npt.NDArray[np.float32]


def guarded(values: F32, offset: int) -> F32:
    """A copy that begins `offset` floats past a 64-byte border and has NaNs right before and after it."""
    room = np.full(values.size + offset + 48, np.nan, np.float32)
    first = (-room.ctypes.data // 4) % 16 + offset
    view = room[first : first + values.size].reshape(values.shape)
    view[...] = values
    return view


def check(q: Quantized, x: F32, impl: str, threads: int = 1) -> None:
    """Within the float64 bound, and equal to the canonical order to the bit."""
    y = PackedMatrix.pack(q).gemv(x, impl, threads)
    want = oracle.matvec_f64(q, x)
    assert (np.abs(y - want.value) <= want.bound).all()
    assert y.tobytes() == oracle.matvec_exact(q, x).tobytes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("cols", [1, 2, 15, 16, 17, 31, 64, 127, 128, 129, 143, 144, 255, 257])
def test_every_tail_of_columns(impl: str, rng: np.random.Generator, format: str, cols: int) -> None:
    q = quantize(rng.standard_normal((17, cols)).astype(np.float32), format)
    for num_tokens in (1, 2, 8):
        check(q, rng.standard_normal((num_tokens, cols)).astype(np.float32), impl)


@pytest.mark.parametrize("format", FORMATS)
def test_every_tail_of_rows(impl: str, rng: np.random.Generator, format: str) -> None:
    w = rng.standard_normal((131, 40)).astype(np.float32)
    for rows in [*range(1, 34), 48, 63, 64, 65, 79, 80, 127, 128, 129, 131]:
        check(quantize(w[:rows], format), rng.standard_normal((2, 40)).astype(np.float32), impl)


@pytest.mark.parametrize("format", FORMATS)
def test_every_batch_from_1_to_64(impl: str, rng: np.random.Generator, format: str) -> None:
    """Any number of tokens gives each token the bits it has alone."""
    q = quantize(rng.standard_normal((83, 150)).astype(np.float32), format)
    packed = PackedMatrix.pack(q)
    x = rng.standard_normal((64, 150)).astype(np.float32)
    all_64 = packed.gemv(x, impl)
    assert all_64.tobytes() == oracle.matvec_exact(q, x).tobytes()
    for num_tokens in range(1, 65):
        assert packed.gemv(x[:num_tokens], impl).tobytes() == all_64[:num_tokens].tobytes()
    for token in range(64):
        assert packed.gemv(x[token : token + 1], impl).tobytes() == all_64[token : token + 1].tobytes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("offset", range(16))
def test_misaligned_buffers_among_nans(impl: str, rng: np.random.Generator, format: str, offset: int) -> None:
    """Nothing outside x is read into a sum, nothing outside y is written, wherever they begin."""
    q = quantize(rng.standard_normal((37, 45)).astype(np.float32), format)
    packed = PackedMatrix.pack(q)
    for num_tokens in (1, 3, 7):
        x = guarded(rng.standard_normal((num_tokens, 45)).astype(np.float32), offset)
        room = np.full(num_tokens * 37 + 2 * 16, 7, np.float32)
        out = room[offset : offset + num_tokens * 37].reshape(num_tokens, 37)
        packed.gemv(x, impl, out=out)
        assert out.tobytes() == oracle.matvec_exact(q, x).tobytes()
        assert (room[:offset] == 7).all() and (room[offset + num_tokens * 37 :] == 7).all()


def test_arrays_off_the_float_grid_are_copied(impl: str, rng: np.random.Generator) -> None:
    packed = PackedMatrix.pack(quantize(rng.standard_normal((8, 20)).astype(np.float32), "e4m3"))
    x = rng.standard_normal((2, 20)).astype(np.float32)
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 20)
    assert not odd.flags.aligned
    assert packed.gemv(odd, impl).tobytes() == packed.gemv(x, impl).tobytes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("r0", "r1", "c0", "c1"), [(0, 200, 16, 272), (5, 150, 100, 300), (120, 140, 127, 129), (33, 34, 130, 131)]
)
def test_pieces_count_tiles_from_their_matrix(
    impl: str, rng: np.random.Generator, format: str, r0: int, r1: int, c0: int, c1: int
) -> None:
    whole = quantize(rng.standard_normal((200, 300)).astype(np.float32), format)
    x = rng.standard_normal((2, c1 - c0)).astype(np.float32)
    check(whole.rows(r0, r1).cols(c0, c1), x, impl)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("format", FORMATS)
def test_threads_do_not_change_bits(impl: str, rng: np.random.Generator, format: str, threads: int) -> None:
    packed = PackedMatrix.pack(quantize(rng.standard_normal((700, 200)).astype(np.float32), format))
    for num_tokens in (1, 2, 5, 33):
        x = rng.standard_normal((num_tokens, 200)).astype(np.float32)
        assert packed.gemv(x, impl, threads).tobytes() == packed.gemv(x, impl).tobytes()


RANGES = {
    "subnormal": (1e-45, 1e-38),
    "below the shifted range": (2.0**-120, 2.0**-108),
    "lower edge": (2.0**-107, 2.0**-100),
    "upper edge": (2.0**10, 2.0**16.99),
    "above the shifted range": (2.0**17, 2.0**30),
    "wide": (2.0**-106, 2.0**16),
}


@pytest.mark.parametrize("format", ["e4m3", "fp9"])
@pytest.mark.parametrize("low_high", RANGES.values(), ids=RANGES)
def test_bits_hold_over_the_whole_range_of_activations(
    impl: str, rng: np.random.Generator, format: str, low_high: tuple[float, float]
) -> None:
    """Subnormal codes, products and accumulators included: a decode's power of two never shows."""
    w = (rng.standard_normal((40, 160)) * 10.0 ** rng.integers(-7, 0, (40, 160))).astype(np.float32)
    q = quantize(w, format)
    size = np.exp2(rng.uniform(np.log2(low_high[0]), np.log2(low_high[1]), (2, 160)))
    x = (size * rng.choice([-1, 1], (2, 160))).astype(np.float32)
    x[:, ::7] = 0
    x[:, 1::14] = -0.0
    packed = PackedMatrix.pack(q)
    want = oracle.matvec_exact(q, x)
    assert packed.gemv(x, impl).tobytes() == want.tobytes()
    assert packed.gemv(x[:1], impl).tobytes() == want[:1].tobytes()
    assert packed.gemv(np.repeat(x[:1], 9, 0), impl)[3].tobytes() == want[0].tobytes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_stays_with_its_token(impl: str, rng: np.random.Generator, format: str, bad: float) -> None:
    packed = PackedMatrix.pack(quantize(rng.standard_normal((20, 33)).astype(np.float32), format))
    for num_tokens in (2, 4, 9):
        x = rng.standard_normal((num_tokens, 33)).astype(np.float32)
        clean = packed.gemv(x, impl)
        x[1, 32] = bad
        y = packed.gemv(x, impl)
        assert not np.isfinite(y[1]).any()
        assert np.delete(y, 1, 0).tobytes() == np.delete(clean, 1, 0).tobytes()


@pytest.mark.parametrize("format", FORMATS)
def test_deep_sums_stay_within_the_bound(impl: str, rng: np.random.Generator, format: str) -> None:
    q = quantize(rng.standard_normal((4, 4099)).astype(np.float32), format)
    check(q, rng.standard_normal((1, 4099)).astype(np.float32), impl)


def test_the_environment_chooses_and_an_unknown_name_is_an_error(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert selected_implementation() == implementations()[-1]
    monkeypatch.setenv("DUCKFLEET_KERNELS", "scalar")
    assert selected_implementation() == "scalar"
    monkeypatch.setenv("DUCKFLEET_KERNELS", "avx1024")
    with pytest.raises(ValueError, match=r"from DUCKFLEET_KERNELS.*avx1024.*usable here: scalar"):
        selected_implementation()
    packed = PackedMatrix.pack(quantize(rng.standard_normal((2, 2)).astype(np.float32), "f32"))
    with pytest.raises(ValueError, match="unknown or not usable"):
        packed.gemv(np.ones((1, 2), np.float32), "neon")


def test_shapes_and_threads_are_checked(rng: np.random.Generator) -> None:
    packed = PackedMatrix.pack(quantize(rng.standard_normal((6, 5)).astype(np.float32), "f32"))
    with pytest.raises(ValueError, match="x must be"):
        packed.gemv(np.ones((1, 6), np.float32))
    with pytest.raises(ValueError, match="threads"):
        packed.gemv(np.ones((1, 5), np.float32), threads=0)
    assert packed.gemv(np.ones((0, 5), np.float32)).shape == (0, 6)


@pytest.mark.parametrize("format", FORMATS)
def test_empty_matrices(impl: str, format: str) -> None:
    whole = quantize(np.ones((4, 4), np.float32), format)
    assert PackedMatrix.pack(whole.rows(2, 2)).gemv(np.ones((3, 4), np.float32), impl).shape == (3, 0)
    assert not PackedMatrix.pack(whole.cols(2, 2)).gemv(np.ones((3, 0), np.float32), impl).any()


@pytest.mark.parametrize("format", FORMATS)
def test_no_prefetch_distance_changes_a_bit(rng: np.random.Generator, format: str) -> None:
    """Nor does asking for what lies far past the end of the weights fault."""
    q = quantize(rng.standard_normal((112, 400)).astype(np.float32), format)
    packed = PackedMatrix.pack(q)
    before = _kernels.prefetch_bytes()
    try:
        for num_tokens in (1, 2, 3):
            x = rng.standard_normal((num_tokens, 400)).astype(np.float32)
            want = oracle.matvec_exact(q, x).tobytes()
            for distance in (0, 1024, 8192, 1 << 30):
                _kernels.set_prefetch_bytes(distance)
                assert packed.gemv(x).tobytes() == want
    finally:
        _kernels.set_prefetch_bytes(before)


def test_tuning_gives_a_distance_that_products_then_use() -> None:
    before = _kernels.prefetch_bytes()
    try:
        _kernels.set_prefetch_bytes(1 << 20)
        assert tune_prefetch(threads=2) in (0, 1024, 2048, 4096, 8192)
        assert _kernels.prefetch_bytes() != 1 << 20
        _kernels.set_prefetch_bytes(1 << 20)
        assert tune_prefetch(impl="scalar") == 4096  # does not prefetch, so nothing is measured
    finally:
        _kernels.set_prefetch_bytes(before)
