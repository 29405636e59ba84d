"""One FFN layer of a published model as one rank of a fleet sees it, run on a real duck."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from duckfleet.runtime.fabric import UdpFabric
from duckfleet.runtime.model.catalogue import entry

from .bench_duck import BenchDuck, bench_duck
from .random_layer import RandomLayer

FORMATS = ("fp9", "e4m3")
BATCHES = (1, 2, 4, 16, 64)
_ROUND_S = 0.4
_MAX_REQUEST_BYTES = 8 << 20  # 64 tokens of 7168 in one request


def rows(
    model: str = "deepseek-v3.2", tp: int = 32, threads: int = 1, rounds: int = 5, formats: str = ",".join(FORMATS)
) -> Iterator[dict[str, Any]]:
    """us a forward as the duck itself measures it; ratio: weight bytes a second over what its cores read at best."""
    found = entry(model)
    for format in formats.split(","):
        layer = RandomLayer(found, tp, format)
        with bench_duck(threads) as duck:
            plan, chunks = layer.place()
            duck.put(chunks)
            fabric = UdpFabric(
                duck.roster,
                plan,
                duck.keys,
                deadline_s=10.0,
                max_tokens=max(BATCHES),
                max_request_bytes=_MAX_REQUEST_BYTES,
            )
            try:
                for num_tokens in BATCHES:
                    yield _measure(
                        duck, fabric, layer, num_tokens, f"{found.name}/tp{tp}/{format}/M{num_tokens}", rounds
                    )
            finally:
                fabric.close()


def _measure(
    duck: BenchDuck, fabric: UdpFabric, layer: RandomLayer, num_tokens: int, name: str, rounds: int
) -> dict[str, Any]:
    times_us, ratios = [], []
    out = np.empty((num_tokens, layer.hidden), np.float32)
    with duck.client as client:
        for _ in range(rounds):
            limit = client.probe()["measured"]["read_bandwidth"]["bytes_per_s"]
            before = client.stats()["data"]
            until = time.monotonic() + _ROUND_S
            while time.monotonic() < until:
                x, experts, weights = layer.step(num_tokens)
                fabric.wait(fabric.submit(0, x, experts, weights), out)
            after = client.stats()["data"]
            compute_us = after["compute"]["total_us"] - before["compute"]["total_us"]
            read_bytes = after["weight_bytes"] - before["weight_bytes"]
            times_us.append(compute_us / (after["compute"]["count"] - before["compute"]["count"]))
            ratios.append(read_bytes / compute_us * 1e6 / limit)
    return {
        "name": name,
        "value": statistics.median(times_us),
        "unit": "us, lower is better",
        "ratio": statistics.median(ratios),
        "against": "read limit of the same cores, same run",
    }
