"""A shard plan as JSON text and back."""

from __future__ import annotations

import json
from typing import Any

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import Chunk, Section, ShardPlan

VERSION = 1


class BadPlan(OperatorError):
    """The text is not a shard plan of this version."""


def plan_to_json(plan: ShardPlan) -> str:
    """Canonical text: the same plan gives the same bytes. A chunk is a list, as plans have 10^5 of them."""
    chunks = [
        [c.digest, c.layer, c.slice, c.part, c.num_bytes, [[s.expert, s.col0, s.num_cols] for s in c.sections]]
        for c in plan.chunks
    ]
    head: dict[str, Any] = {name: getattr(plan, name) for name in _HEAD}
    text = {"version": VERSION, **head, "holders": [list(h) for h in plan.holders], "chunks": chunks}
    return json.dumps(text, separators=(",", ":"))


_HEAD = {
    "generation": int,
    "model": str,
    "model_digest": str,
    "format": str,
    "hidden": int,
    "num_layers": int,
    "tp": int,
    "parts_per_slice": int,
}


def plan_from_json(text: str, source: str = "plan") -> ShardPlan:
    """Raises `BadPlan` naming `source` and what is wrong with it."""
    try:
        data = json.loads(text)
    except ValueError as e:
        raise BadPlan(f"{source} is not JSON: {e}") from e
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise BadPlan(f"{source} is not a shard plan of version {VERSION} (version {found!r}): prepare the model again")
    try:
        head = {name: _typed(data[name], kind, name) for name, kind in _HEAD.items()}
        holders = tuple(tuple(_typed(i, int, "holders") for i in held) for held in data["holders"])
        chunks = tuple(
            Chunk(layer, slice_, part, tuple(Section(*s) for s in sections), num_bytes, digest)
            for digest, layer, slice_, part, num_bytes, sections in data["chunks"]
        )
    except (KeyError, TypeError, ValueError) as e:
        raise BadPlan(f"{source} is not a whole shard plan ({e}): prepare the model again") from e
    return ShardPlan(**head, chunks=chunks, holders=holders)


def _typed(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{name} should be {kind.__name__}, is {value!r}")
    return value
