"""What host, network and authentication add to a duck's compute: one duck of one thread, the other core the host's."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from duckfleet.fp9_kernels import tune_prefetch
from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.planner import FfnShape, ModelShape

from .bench_link import shaped_link
from .bench_rig import BenchDuck, RandomLayer, two_cpus
from .udp import UdpFabric

# The MoE layer of DeepSeek-V3.2 as one of 32 ranks has it: 2048/32 columns of each of the 8 routed experts and the
# shared one. 48 experts are 65 MB, so that weights come from memory and not from a cache.
V32_RANK = ModelShape("v3.2 rank of 32", 7168, (FfnShape(64, num_experts=48, shared_intermediate=64),))
SMOLLM2 = ModelShape("smollm2", 576, (FfnShape(1536),))

_BLOCK = 20  # forwards in a row before the other side has its turn
_2_5G = 2_500_000_000


def rows(seconds: float = 8.0, spin_us: int = 2000, network: str = "all") -> Iterator[Mapping[str, Any]]:
    """Rows `overhead/M1`, `busy/lanes2` on loopback; `overhead/M1/2.5G` on a wire of 2.5 Gbit/s with jumbo frames (as
    root), `overhead/M1/2.5G/mtu1500` without; each with `/noauth` beside it, the overheads also against the duck's own
    clock (`/own`); `auth-cost`, `idle`, and the times behind them.

    Every ratio is a median over pairs measured one after the other in this run. `seconds` for each row. `network`:
    loopback, 2.5G or all.
    """
    if network not in ("all", "loopback", "2.5G"):
        raise OperatorError(f"there is no network {network!r}: loopback, 2.5G or all")
    if network != "2.5G":
        yield from _on_loopback(seconds, spin_us)
    if network != "loopback":
        yield from _on_wire(seconds, spin_us)


def _on_wire(seconds: float, spin_us: int) -> Iterator[Mapping[str, Any]]:
    host_cpu, duck_cpu = two_cpus()
    layer = RandomLayer(V32_RANK)
    for suffix, mtu in (("2.5G", 9000), ("2.5G/mtu1500", 1500)):
        with (
            shaped_link(_2_5G, mtu, host_cpu) as link,
            BenchDuck(layer, duck_cpu, spin_us, link) as duck,
            _on(host_cpu),
        ):
            yield from _overhead(layer, duck, spin_us, seconds, f"M1/{suffix}")


@contextmanager
def _on(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _on_loopback(seconds: float, spin_us: int) -> Iterator[Mapping[str, Any]]:
    host_cpu, duck_cpu = two_cpus()
    layer = RandomLayer(V32_RANK)
    with BenchDuck(layer, duck_cpu, spin_us) as duck, _on(host_cpu):
        yield from _overhead(layer, duck, spin_us, seconds, "M1")
        for auth in (True, False):
            yield from _busy(layer, duck, spin_us, seconds, auth)
    small = RandomLayer(SMOLLM2)
    with BenchDuck(small, duck_cpu, spin_us) as duck, _on(host_cpu):
        yield from _auth_cost(small, duck, spin_us, seconds)
        yield from _idle(small, duck, spin_us, seconds)


def _timed_forwards(fabric: UdpFabric, layer: RandomLayer, count: int) -> list[float]:
    """Microseconds of each forward as its caller sees it."""
    out = np.empty((1, layer.hidden), np.float32)
    times = []
    for _ in range(count):
        x, experts, weights = layer.inputs(1)
        begun = time.perf_counter()
        fabric.wait(fabric.submit(0, x, experts, weights), out)
        times.append((time.perf_counter() - begun) * 1e6)
    return times


def _overhead(
    layer: RandomLayer, duck: BenchDuck, spin_us: int, seconds: float, name: str
) -> Iterator[Mapping[str, Any]]:
    shard = layer.shard()
    tune_prefetch()  # as the duck did when it started

    def compute(count: int) -> list[float]:
        times = []
        for _ in range(count):
            x, experts, weights = layer.inputs(1)
            begun = time.perf_counter()
            shard.ffn_part(0, 0, 0, x, experts, weights)
            times.append((time.perf_counter() - begun) * 1e6)
        return times

    for suffix, auth in ((name, True), (f"{name}/noauth", False)):
        fabric = duck.open(auth=auth, spin_us=spin_us)
        own_us: list[float] = []

        def forward(count: int, fabric: UdpFabric = fabric, own_us: list[float] = own_us) -> list[float]:
            before_us = duck.compute_us()
            times = _timed_forwards(fabric, layer, count)
            own_us += [(duck.compute_us() - before_us) / count] * count
            return times

        forward_us, compute_us = _pairs(forward, compute, seconds)
        fabric.close()
        own_us = own_us[-len(forward_us) :]
        for row, against_us, against in (
            (f"overhead/{suffix}", compute_us, "the shard's compute in this process, in turn"),
            (f"overhead/{suffix}/own", own_us, "the duck's own compute of the same forwards"),
        ):
            yield {
                "name": row,
                "value": statistics.median(f - c for f, c in zip(forward_us, against_us, strict=True)),
                "unit": "us added to a forward, lower is better",
                "ratio": statistics.median((f - c) / c for f, c in zip(forward_us, against_us, strict=True)),
                "against": against,
            }
        yield {"name": f"forward/{suffix}", "value": statistics.median(forward_us), "unit": "us, lower is better"}
        yield {"name": f"compute/{suffix}", "value": statistics.median(compute_us), "unit": "us, lower is better"}


def _busy(layer: RandomLayer, duck: BenchDuck, spin_us: int, seconds: float, auth: bool) -> Iterator[Mapping[str, Any]]:
    fabric = duck.open(auth=auth, spin_us=spin_us)
    inputs = [layer.inputs(1) for _ in range(16)]
    out = np.empty((1, layer.hidden), np.float32)
    computed_us = duck.compute_us()
    begun = time.perf_counter()
    tickets = [fabric.submit(0, *inputs[lane], lane=lane) for lane in range(2)]
    count = 0
    while time.perf_counter() - begun < seconds:
        lane = count % 2
        fabric.wait(tickets[lane], out)
        tickets[lane] = fabric.submit(0, *inputs[count % len(inputs)], lane=lane)
        count += 1
    for ticket in tickets:
        fabric.wait(ticket, out)
    wall_us = (time.perf_counter() - begun) * 1e6
    share = (duck.compute_us() - computed_us) / wall_us
    fabric.close()
    yield {
        "name": "busy/lanes2" if auth else "busy/lanes2/noauth",
        "value": 100 * share,
        "unit": "% of the time a duck computes",
        "ratio": share,
        "against": "the wall clock of the same run",
    }


def _auth_cost(layer: RandomLayer, duck: BenchDuck, spin_us: int, seconds: float) -> Iterator[Mapping[str, Any]]:
    def block(auth: bool) -> Callable[[int], list[float]]:
        def run(count: int) -> list[float]:
            fabric = duck.open(auth=auth, spin_us=spin_us)
            _timed_forwards(fabric, layer, 10)
            times = _timed_forwards(fabric, layer, 10 * count)
            fabric.close()
            return [statistics.median(times[i::count]) for i in range(count)]

        return run

    with_us, without_us = _pairs(block(True), block(False), seconds)
    yield {
        "name": "auth-cost",
        "value": statistics.median(a - b for a, b in zip(with_us, without_us, strict=True)),
        "unit": "us of a SmolLM2 layer's forward, lower is better",
        "ratio": statistics.median((a - b) / b for a, b in zip(with_us, without_us, strict=True)),
        "against": "the same forward without tags, in turn",
    }


def _idle(layer: RandomLayer, duck: BenchDuck, spin_us: int, seconds: float) -> Iterator[Mapping[str, Any]]:
    fabric = duck.open(auth=True, spin_us=spin_us)
    _timed_forwards(fabric, layer, 10)
    before_s, begun = duck.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    share = (duck.cpu_s() - before_s) / (time.perf_counter() - begun)
    fabric.close()
    yield {
        "name": "idle",
        "value": 100 * share,
        "unit": "% of a core a duck with a session and no request takes, lower is better",
        "ratio": share,
        "against": "the wall clock of the same run",
    }


def _pairs(
    one: Callable[[int], list[float]], other: Callable[[int], list[float]], seconds: float
) -> tuple[list[float], list[float]]:
    """Both in turn, block by block, until the time is over; equally many of each."""
    one(3)
    other(3)
    ones: list[float] = []
    others: list[float] = []
    begun = time.perf_counter()
    while not ones or time.perf_counter() - begun < seconds:
        ones += one(_BLOCK)
        others += other(_BLOCK)
    return ones, others
