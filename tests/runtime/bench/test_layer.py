"""The layer benchmark: real traffic in shape, real weights in size, a real duck at the other end."""

import numpy as np

from duckfleet.runtime.bench.bench_duck import bench_duck
from duckfleet.runtime.bench.layer import rows
from duckfleet.runtime.bench.random_layer import RandomLayer
from duckfleet.runtime.fabric import LocalFabric, UdpFabric
from duckfleet.runtime.model.catalogue import entry


def test_no_two_steps_are_alike():
    layer = RandomLayer(entry("deepseek-v3.2"), 64, "fp9")
    seen = set()
    for _ in range(20):
        x, experts, weights = layer.step(4)
        assert x.shape == (4, 7168) and experts.shape == weights.shape == (4, 9)
        assert (np.diff(experts.astype(int), axis=1) > 0).all() and (experts[:, -1] == 256).all()
        np.testing.assert_allclose(weights[:, :-1].sum(axis=1), 1, rtol=1e-5)
        seen.update(tuple(e) for e in experts)
    assert len(seen) == 80


def test_rows_have_their_names_and_their_ratios():
    found = list(rows("qwen3-30b-a3b", tp=64, rounds=1, formats="fp9"))
    assert [r["name"] for r in found] == [f"qwen3-30b-a3b/tp64/fp9/M{m}" for m in (1, 2, 4, 16, 64)]
    assert all(r["value"] > 0 and r["ratio"] > 0 for r in found)


def test_a_full_size_layer_on_a_real_duck():
    """256 routed experts and a shared one, 7168 x 64 columns each: what one of 32 ranks holds of a layer."""
    layer = RandomLayer(entry("deepseek-v3.2"), 32, "e4m3")
    plan, chunks = layer.place()
    assert 0.35e9 < sum(c.num_bytes for c in plan.chunks) < 0.4e9
    assert sum(len(c.sections) for c in plan.chunks) == 257
    contents = dict(chunks)
    local = LocalFabric(plan, lambda chunk: contents[chunk.digest])
    with bench_duck() as duck:
        duck.put(contents.items())
        contents.clear()
        fabric = UdpFabric(duck.roster, plan, duck.keys, deadline_s=60.0)
        for num_tokens in (1, 1, 5):
            x, experts, weights = layer.step(num_tokens)
            expected, got = np.empty_like(x), np.empty_like(x)
            local.wait(local.submit(0, x, experts, weights), expected)
            fabric.wait(fabric.submit(0, x, experts, weights), got)
            assert np.isfinite(got).all() and got.any()
            np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
        fabric.close()
