"""The fused FFN of a part: bounds, canonical bits, and what those bits may not depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckfleet.fp9_kernels import FORMATS, ChunkSection, Shard, encode_chunk, implementations, oracle, quantize

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A part of a layer: expert id -> piece of columns [col0, col0 + num_cols)."""

    format: str
    hidden: int
    intermediate: int
    pieces: dict[int, ChunkSection]

    @property
    def experts(self) -> dict[int, oracle.ExpertPiece]:
        return {e: oracle.ExpertPiece(s.gate, s.up, s.down) for e, s in self.pieces.items()}

    def chunk(self, experts: Sequence[int] | None = None) -> bytes:
        ids = sorted(self.pieces if experts is None else experts)
        return encode_chunk(7, 1, 2, self.hidden, self.intermediate, self.format, [self.pieces[e] for e in ids])

    def shard(
        self, impl: str | None = None, threads: int = 1, grouping: Sequence[Sequence[int]] | None = None
    ) -> Shard:
        shard = Shard(impl, threads)
        assert impl is None or shard.implementation == impl
        for experts in [None] if grouping is None else grouping:
            assert shard.add_chunk(self.chunk(experts)) == (7, 1, 2)
        return shard


def make_case(
    rng: np.random.Generator, format: str, hidden: int, intermediate: int, columns: dict[int, tuple[int, int]]
) -> Case:
    pieces = {}
    for expert, (col0, num_cols) in columns.items():
        gate, up = (
            quantize((rng.standard_normal((intermediate, hidden)) * 0.2).astype(np.float32), format) for _ in range(2)
        )
        down = quantize((rng.standard_normal((hidden, intermediate)) * 0.2).astype(np.float32), format)
        end = col0 + num_cols
        pieces[expert] = ChunkSection(expert, col0, gate.rows(col0, end), up.rows(col0, end), down.cols(col0, end))
    return Case(format, hidden, intermediate, pieces)


def make_routes(
    rng: np.random.Generator, num_tokens: int, num_experts: int, top_k: int
) -> tuple[npt.NDArray[np.uint32], F32]:
    experts = np.stack([np.sort(rng.permutation(num_experts)[:top_k]) for _ in range(num_tokens)])
    return experts.astype(np.uint32), rng.random((num_tokens, top_k)).astype(np.float32)


def pairs(experts: npt.NDArray[np.uint32], weights: F32) -> list[list[tuple[int, float]]]:
    return [[(int(e), float(w)) for e, w in zip(*row, strict=True)] for row in zip(experts, weights, strict=True)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("hidden", "intermediate", "col0", "num_cols"),
    [(64, 128, 0, 128), (200, 96, 16, 48), (33, 272, 96, 64), (130, 160, 144, 16)],
)
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 9])
def test_dense(
    impl: str,
    rng: np.random.Generator,
    format: str,
    hidden: int,
    intermediate: int,
    col0: int,
    num_cols: int,
    num_tokens: int,
) -> None:
    case = make_case(rng, format, hidden, intermediate, {0: (col0, num_cols)})
    x = rng.standard_normal((num_tokens, hidden)).astype(np.float32)
    y = case.shard(impl).ffn_part(7, 1, 2, x)
    routes = [[(0, 1.0)]] * num_tokens
    want = oracle.ffn_f64(case.experts, x, routes)
    assert (np.abs(y - want.value) <= want.bound).all()
    assert y.tobytes() == oracle.ffn_exact(case.experts, x, routes).tobytes()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 2, 12])
def test_experts(impl: str, rng: np.random.Generator, format: str, num_tokens: int) -> None:
    """Uneven pieces, an expert with none, and one whose id is the highest (the shared expert)."""
    columns = {0: (0, 32), 1: (32, 16), 3: (128, 48), 4: (0, 0), 6: (112, 32)}
    case = make_case(rng, format, 80, 176, columns)
    x = rng.standard_normal((num_tokens, 80)).astype(np.float32)
    experts, weights = make_routes(rng, num_tokens, 7, 4)
    y = case.shard(impl).ffn_part(7, 1, 2, x, experts, weights)
    want = oracle.ffn_f64(case.experts, x, pairs(experts, weights))
    assert (np.abs(y - want.value) <= want.bound).all()
    assert y.tobytes() == oracle.ffn_exact(case.experts, x, pairs(experts, weights)).tobytes()


@pytest.mark.parametrize("format", FORMATS)
def test_bits_do_not_depend_on_batch_chunking_threads_or_implementation(rng: np.random.Generator, format: str) -> None:
    num_experts, hidden = 9, 176
    case = make_case(rng, format, hidden, 320, {e: (16 * e, 16 * (1 + e % 4)) for e in range(num_experts)})
    experts, weights = make_routes(rng, 40, num_experts, 3)
    x = rng.standard_normal((40, hidden)).astype(np.float32)
    want = Shard("scalar")
    want.add_chunk(case.chunk())
    bits = want.ffn_part(7, 1, 2, x, experts, weights)
    groupings = [None, [[e] for e in reversed(range(num_experts))], [[0, 5, 7], [1, 2, 3, 4, 6, 8]]]
    for impl in implementations():
        for threads in (1, 2, 4):
            for grouping in groupings:
                shard = case.shard(impl, threads, grouping)
                for size in (1, 2, 3, 7, 40):
                    for first in range(0, 40, size):
                        part = slice(first, min(first + size, 40))
                        y = shard.ffn_part(7, 1, 2, x[part], experts[part], weights[part])
                        assert y.tobytes() == bits[part].tobytes(), (impl, threads, grouping, size, first)


def test_the_order_of_a_tokens_experts_does_not_matter(rng: np.random.Generator) -> None:
    case = make_case(rng, "e4m3", 48, 64, {e: (0, 64) for e in range(4)})
    experts, weights = make_routes(rng, 6, 4, 3)
    x = rng.standard_normal((6, 48)).astype(np.float32)
    shard = case.shard()
    turned = shard.ffn_part(7, 1, 2, x, experts[:, ::-1], weights[:, ::-1])
    assert turned.tobytes() == shard.ffn_part(7, 1, 2, x, experts, weights).tobytes()


@pytest.mark.parametrize("gate", [0.0, -0.0, 1e-30, 20.0, -20.0, 87.5, -87.5, 1e4, -1e4, 3e38, -3e38])
def test_silu_over_its_whole_range(impl: str, gate: float) -> None:
    """One column with gate = `gate` and up = 1: the output is silu(gate)."""
    gate_w, up_w, down_w = np.zeros((16, 16)), np.zeros((16, 16)), np.zeros((16, 16))
    gate_w[0, 0], up_w[0, 1], down_w[0, 0] = gate, 1, 1
    section = ChunkSection(0, 0, *(quantize(w.astype(np.float32), "f32") for w in (gate_w, up_w, down_w)))
    case = Case("f32", 16, 16, {0: section})
    x = np.zeros((1, 16), np.float32)
    x[0, :2] = 1
    y = case.shard(impl).ffn_part(7, 1, 2, x)
    want = float(oracle.silu_f64(np.float64(np.float32(gate))))
    assert abs(y[0, 0] - want) <= 4 * oracle.EPSILON * abs(want) + abs(gate) * 2.0**-126
    assert y.tobytes() == oracle.ffn_exact(case.experts, x, [[(0, 1.0)]]).tobytes()


def test_large_intermediates_leave_the_shifted_range(impl: str, rng: np.random.Generator) -> None:
    """h beyond 2^17, where the second stage must decode exactly."""
    case = make_case(rng, "fp9", 64, 64, {0: (0, 64)})
    x = (rng.standard_normal((2, 64)) * 3e4).astype(np.float32)
    want = oracle.ffn_exact(case.experts, x, [[(0, 1.0)]] * 2)
    assert np.abs(want).max() > 2.0**20
    assert case.shard(impl).ffn_part(7, 1, 2, x).tobytes() == want.tobytes()


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    """Any hidden size, pieces, routes and threads: the canonical bits, on each implementation."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    hidden = draw(st.integers(1, 150))
    num_experts = draw(st.integers(1, 5))
    columns = {
        e: (16 * draw(st.integers(0, 9)), 16 * draw(st.integers(0, 3)))
        for e in range(num_experts)
        if draw(st.booleans())
    } or {0: (0, 16)}
    case = make_case(rng, draw(st.sampled_from(FORMATS)), hidden, 192, columns)
    num_tokens = draw(st.integers(1, 14))
    experts, weights = make_routes(rng, num_tokens, num_experts, draw(st.integers(0, num_experts)))
    x = rng.standard_normal((num_tokens, hidden)).astype(np.float32)
    want = oracle.ffn_exact(case.experts, x, pairs(experts, weights)).tobytes()
    for impl in implementations():
        shard = case.shard(impl, draw(st.integers(1, 3)))
        assert shard.ffn_part(7, 1, 2, x, experts, weights).tobytes() == want


def test_what_does_not_fit_is_an_error(rng: np.random.Generator) -> None:
    case = make_case(rng, "bf16", 32, 32, {0: (0, 32)})
    shard = case.shard()
    x = np.ones((2, 32), np.float32)
    with pytest.raises(KeyError, match="layer 7, slice 1, part 3"):
        shard.ffn_part(7, 1, 3, x)
    with pytest.raises(ValueError, match="hidden"):
        shard.ffn_part(7, 1, 2, np.ones((2, 31), np.float32))
    with pytest.raises(ValueError, match="go together"):
        shard.ffn_part(7, 1, 2, x, experts=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="top_k"):
        shard.ffn_part(7, 1, 2, x, np.zeros((2, 1)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="already in another chunk"):
        shard.add_chunk(case.chunk())
    other = make_case(rng, "f32", 32, 32, {1: (0, 32)})
    with pytest.raises(ValueError, match="format is not that"):
        shard.add_chunk(other.chunk())
    with pytest.raises(ValueError, match="unknown or not usable"):
        Shard("mmx")
    assert shard.ffn_part(7, 1, 2, np.ones((0, 32), np.float32)).shape == (0, 32)
