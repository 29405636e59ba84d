"""Counting a model that is not here: against what its makers published."""

import math
from dataclasses import replace

import pytest

from duckfleet.runtime.model import UnsupportedModel
from duckfleet.runtime.model.catalogue import entry
from duckfleet.runtime.model.fleet_budget import DuckRam, fleet_budget
from duckfleet.runtime.model.published import published_config, published_tensors

REFERENCE_FLEET = [DuckRam(f"10.21.{d}.{100 + i}", 32 << 30) for d in range(1, 5) for i in range(1, 9)]


def total_bytes(e):
    return sum(t.num_bytes for t in published_tensors(e).values())


def test_deepseek_v3_is_as_large_as_its_weight_files():
    """688,586,727,753 bytes is the size of the weight files of deepseek-ai/DeepSeek-V3, headers included."""
    v3 = replace(
        entry("deepseek-v3.2"), model_type="deepseek_v3", index_heads=None, index_head_dim=None, index_topk=None
    )
    assert total_bytes(v3) == pytest.approx(688_586_727_753, rel=1e-4)
    parameters = sum(math.prod(t.shape) for t in published_tensors(v3).values())
    assert parameters == pytest.approx(684.5e9, rel=1e-3)  # "685B", with the MTP layer's copies


@pytest.mark.parametrize(
    ("name", "billions"),
    [("deepseek-v3.2", 685), ("qwen3-30b-a3b", 30.5), ("qwen3-235b-a22b", 235), ("smollm2", 0.1345)],
)
def test_parameters_are_those_in_the_name(name, billions):
    e = entry(name)
    assert sum(math.prod(t.shape) for t in published_tensors(e).values()) / 1e9 == pytest.approx(billions, rel=2e-3)
    assert published_config(e).ffn_shape(e.name) == e.shape()


def test_the_flagship_on_the_reference_fleet():
    budget = fleet_budget(entry("deepseek-v3.2"), REFERENCE_FLEET, ctx=16384, gpu_bytes=32 << 30, parts=4, replicas=1.0)
    assert budget.blocked == ()
    assert budget.counted_bytes == pytest.approx(budget.published_bytes, rel=0.01)
    assert max(budget.slice_bytes) / 2**30 == pytest.approx(19.6, abs=0.1)
    # about half of a second copy fits
    assert 0.5 < min(budget.covered) < 0.6
    assert budget.host.cache_bytes_per_token == 62 * 4 * (512 + 64 + 128)


def test_what_does_not_fit_is_said():
    fleet = [*REFERENCE_FLEET[:19], DuckRam("10.21.2.104", 16 << 30)]
    (blocked,) = fleet_budget(entry("deepseek-v3.2"), fleet, ctx=2048).blocked
    assert blocked == "needs 31.3 GiB on each of 20 beside 1.5 for its system; 10.21.2.104 has 16.0 (19 more are short)"
    blocked = fleet_budget(entry("deepseek-v3.2"), REFERENCE_FLEET, ctx=200_000, gpu_bytes=16 << 30).blocked
    assert "GPU memory for a context of 200000; there are 16.0" in blocked[0]
    assert "fewer than the context of 200000" in blocked[1]
    fits = int(blocked[0].rpartition("--ctx ")[2].split()[0])
    assert fleet_budget(entry("deepseek-v3.2"), REFERENCE_FLEET, ctx=fits, gpu_bytes=16 << 30).blocked == ()
    (blocked,) = fleet_budget(entry("deepseek-v3.2"), REFERENCE_FLEET, ctx=fits + 1, gpu_bytes=16 << 30).blocked
    assert blocked.endswith("would fit")
    (blocked,) = fleet_budget(entry("deepseek-v3.2"), REFERENCE_FLEET, ctx=16, gpu_bytes=8 << 30).blocked
    assert blocked.endswith("there are 8.0, too little for its weights")


def test_a_family_that_is_not_there_yet_is_named():
    with pytest.raises(UnsupportedModel, match="qwen3_5_moe"):
        published_config(entry("qwen3.5-35b-a3b"))
