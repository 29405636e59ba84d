"""`duckctl bench failover`: how long a forward waits when a duck is killed under it, detection included.

Five process ducks of one thread with random e4m3 weights (about 18 MiB each), one token a forward. The pause is the
longest forward around the kill less the median one. Replica: every part is held twice. Partial: half of the parts are,
the rest is spread over the survivors. Spare: a duck without weights stands by. Reload: nobody holds a copy.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from duckfleet.inventory.plan import ShardPlan

from .bench_fleet import BenchFleet, RandomModel
from .failover import FailoverPolicy

_TP, _PARTS = 5, 4
_UNIT = "ms including detection, lower is better"
_WARM_UP, _AFTER = 120, 40


def rows(repeats: int = 3) -> Iterator[Mapping[str, Any]]:
    """Rows `pause/{replica,partial,spare,reload}`: medians of `repeats` kills, of another duck each time."""
    model = RandomModel(_TP, _PARTS)
    plans: dict[str, tuple[ShardPlan, int]] = {
        "replica": (with_copies(model.plan, _PARTS), 0),
        "partial": (with_copies(model.plan, _PARTS // 2), 0),
        "spare": (replace(model.plan, holders=(*model.plan.holders, ())), 1),
        "reload": (model.plan, 0),
    }
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-") as folder:
        for name, (plan, num_spares) in plans.items():
            pauses_ms = []
            for kill in range(repeats):
                with BenchFleet(Path(folder) / f"{name}{kill}", model, plan, num_spares) as fleet:
                    pauses_ms.append(_pause_ms(fleet, model, 1 + kill % (_TP - 1)))
            yield {"name": f"pause/{name}", "value": statistics.median(pauses_ms), "unit": _UNIT}


def with_copies(plan: ShardPlan, num_parts: int) -> ShardPlan:
    """Parts [0, num_parts) of slice s are also held by ranks s+1, s+2, … in turn."""
    holders = [set(held) for held in plan.holders]
    for index, chunk in enumerate(plan.chunks):
        if chunk.part < num_parts:
            holders[(chunk.slice + 1 + chunk.part % (plan.tp - 1)) % plan.tp].add(index)
    return replace(plan, holders=tuple(tuple(sorted(held)) for held in holders))


def _pause_ms(fleet: BenchFleet, model: RandomModel, victim: int) -> float:
    fabric = fleet.fabric(FailoverPolicy(reserve_bytes=0))
    try:
        x = np.random.default_rng(1).standard_normal((1, model.plan.hidden)).astype(np.float32)
        out = np.empty_like(x)
        times_s: list[float] = []
        for i in range(_WARM_UP + _AFTER):
            if i == _WARM_UP:
                fleet.kill(victim)
            begun = time.perf_counter()
            fabric.wait(fabric.submit(i % model.plan.num_layers, x), out)
            times_s.append(time.perf_counter() - begun)
        return 1e3 * (max(times_s[_WARM_UP:]) - _median(times_s[:_WARM_UP]))
    finally:
        fabric.close()


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
