"""LocalFabric: right against float64, the same bits however the model is cut, strict about its callers."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from duckfleet.inventory.errors import InternalError
from duckfleet.runtime.errors import FabricClosed
from duckfleet.runtime.fabric import LocalFabric
from tests.runtime.fabric.cut_model import DENSE, MOE, CutModel


def forward(fabric, model: CutModel, layer: int, num_tokens: int, seed: int = 1) -> np.ndarray:
    x, experts, weights = model.inputs(layer, num_tokens, seed)
    out = np.full_like(x, np.nan)
    fabric.wait(fabric.submit(layer, x, experts, weights), out)
    return out


@pytest.mark.parametrize("shape", [DENSE, MOE], ids=lambda s: s.name)
@pytest.mark.parametrize("format", ["f32", "bf16", "e4m3", "fp9"])
@pytest.mark.parametrize(("tp", "parts"), [(1, 1), (3, 2)])
def test_equals_the_oracle(shape, format: str, tp: int, parts: int) -> None:
    model = CutModel(shape, tp, parts=parts, format=format)
    fabric = LocalFabric(model.plan, model.chunk_bytes)
    for layer in range(shape.num_layers):
        x, experts, weights = model.inputs(layer, 4, seed=1)
        expected = model.oracle(layer, x, experts, weights)
        got = forward(fabric, model, layer, 4)
        assert np.abs(got - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_parts_of_a_slice_are_added_in_order() -> None:
    model = CutModel(DENSE, 2, parts=3)
    fabric = LocalFabric(model.plan, model.chunk_bytes)
    from duckfleet.fp9_kernels import Shard

    shard = Shard()
    for chunk in model.plan.chunks:
        shard.add_chunk(model.chunk_bytes(chunk))
    x, *_ = model.inputs(0, 3, seed=1)
    slices = []
    for rank in range(2):
        parts = sorted({c.part for c in model.plan.chunks if c.layer == 0 and c.slice == rank})
        total = shard.ffn_part(0, rank, parts[0], x)
        for part in parts[1:]:
            total = total + shard.ffn_part(0, rank, part, x)
        slices.append(total)
    assert np.array_equal(forward(fabric, model, 0, 3), slices[0] + slices[1])


def test_bits_do_not_depend_on_the_batch() -> None:
    model = CutModel(MOE, 3)
    fabric = LocalFabric(model.plan, model.chunk_bytes)
    x, experts, weights = model.inputs(1, 9, seed=1)
    whole = forward(fabric, model, 1, 9)
    for t in range(9):
        one = np.empty((1, MOE.hidden), np.float32)
        rows = slice(t, t + 1)
        fabric.wait(fabric.submit(1, x[rows], experts[rows], weights[rows]), one)
        assert np.array_equal(one[0], whole[t])


def test_a_lane_carries_one_forward() -> None:
    model = CutModel(DENSE, 1)
    fabric = LocalFabric(model.plan, model.chunk_bytes)
    x, *_ = model.inputs(0, 1, seed=1)
    ticket = fabric.submit(0, x)
    other = fabric.submit(1, x, lane=1)
    with pytest.raises(InternalError, match="lane 0"):
        fabric.submit(0, x)
    out = np.empty_like(x)
    fabric.wait(other, out)
    fabric.wait(ticket, out)
    with pytest.raises(InternalError):
        fabric.wait(ticket, out)
    dropped = fabric.submit(0, x)
    del dropped
    gc.collect()
    fabric.wait(fabric.submit(0, x), out)


def test_closed_and_wrong_shapes() -> None:
    model = CutModel(DENSE, 1)
    fabric = LocalFabric(model.plan, model.chunk_bytes)
    for x in (np.zeros((1, 3), np.float32), np.zeros((0, DENSE.hidden), np.float32)):
        with pytest.raises(ValueError, match="wanted"):
            fabric.submit(0, x)
    with pytest.raises(ValueError, match="layer 3"):
        fabric.submit(3, np.zeros((1, DENSE.hidden), np.float32))
    fabric.close()
    fabric.close()
    with pytest.raises(FabricClosed):
        fabric.submit(0, np.zeros((1, DENSE.hidden), np.float32))
