"""The benchmark's shaped network: really made, real bits over it, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from duckfleet.runtime.fabric.bench_link import shaped_link
from duckfleet.runtime.fabric.bench_rig import BenchDuck, RandomLayer
from duckfleet.runtime.planner import FfnShape, ModelShape

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if f"duckfleet-bench-{os.getpid()}-" in line}


@needs_root
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_forwards_over_a_wire_have_the_shards_bits(mtu: int) -> None:
    """Requests of several fragments, begun before they are whole; replies sent while the rest is computed."""
    cpu = min(os.sched_getaffinity(0))
    layer = RandomLayer(ModelShape("wide", 7168, (FfnShape(32, num_experts=4, shared_intermediate=32),)))
    shard = layer.shard()
    with shaped_link(2_500_000_000, mtu, cpu) as link, BenchDuck(layer, cpu, 0, link) as duck:
        assert len(namespaces()) == 3
        fabric = duck.open(auth=True, spin_us=0)
        try:
            for num_tokens in (1, 1, 3, 8, 9, 1):
                x, experts, weights = layer.inputs(num_tokens, top_k=2)
                out = np.empty_like(x)
                fabric.wait(fabric.submit(0, x, experts, weights), out)
                assert np.array_equal(out, shard.ffn_part(0, 0, 0, x, experts, weights))
            # Both lanes at once.
            inputs = [layer.inputs(1, top_k=2) for _ in range(2)]
            outs = [np.empty_like(x) for x, _, _ in inputs]
            tickets = [fabric.submit(0, *given, lane=lane) for lane, given in enumerate(inputs)]
            for ticket, given, out in zip(tickets, inputs, outs, strict=True):
                fabric.wait(ticket, out)
                assert np.array_equal(out, shard.ffn_part(0, 0, 0, *given))
        finally:
            fabric.close()
    assert namespaces() == set()


@needs_root
@pytest.mark.parametrize("narrow", [None, "host", "switch"])
def test_jumbo_frames_are_found_where_every_hop_passes_them(narrow: str | None) -> None:
    """A roster that states 1500 on a wire of 9000; with one hop of 1500, at the host or where only an echo can tell."""
    cpu = min(os.sched_getaffinity(0))
    layer = RandomLayer(ModelShape("wide", 7168, (FfnShape(32),)))
    with shaped_link(2_500_000_000, 9000, cpu) as link:
        prefix = f"duckfleet-bench-{os.getpid()}-"
        if narrow is not None:
            device = {"host": "wire", "switch": "duck"}[narrow]
            subprocess.run(["ip", "-n", prefix + narrow, "link", "set", device, "mtu", "1500"], check=True)
        with BenchDuck(layer, cpu, 0, replace(link, mtu=1500)) as duck:
            fabric = duck.open(auth=True, spin_us=0)
            try:
                x, experts, weights = layer.inputs(1)
                out = np.empty_like(x)
                fabric.wait(fabric.submit(0, x, experts, weights), out)
                assert np.array_equal(out, layer.shard().ffn_part(0, 0, 0, x, experts, weights))
                [domain] = fabric.stats()["domains"]
            finally:
                fabric.close()
    assert domain["mtu"] == (9000 if narrow is None else 1500)
