"""How long the plan of a full-size model takes: cut, replicas as far as they fit; then it passes the checker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from duckfleet.inventory.errors import InternalError

from .check import check
from .cut import cut
from .replicate import replicate
from .shape import ModelShape

GIB = 1 << 30


def rows(
    model: str = "deepseek-v3.2", format: str = "e4m3", parts: int = 4, ram_gib: float = 32.0, repeats: int = 3
) -> Iterator[dict[str, Any]]:
    """Rows plan/MODEL/N: seconds, the best of `repeats`. Raises `InternalError` when the checker objects."""
    shape = _shape(model)
    room = int((ram_gib - 1.5) * GIB)
    for num_ducks in (32, 31, 29):
        best_s = float("inf")
        for _ in range(repeats):
            began = time.perf_counter()
            plan = replicate(cut(shape, num_ducks, parts, format=format), [room] * num_ducks)
            best_s = min(best_s, time.perf_counter() - began)
        wrong = check(plan, shape, room_bytes=[room] * num_ducks)
        if wrong:
            raise InternalError(f"the plan for {num_ducks} ducks is not sound: {wrong[0]}")
        yield {"name": f"plan/{model}/{num_ducks}", "value": best_s, "unit": "s, lower is better"}


def _shape(model: str) -> ModelShape:
    from duckfleet.runtime.model.catalogue import entry

    return entry(model).shape()
