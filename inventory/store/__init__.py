"""The store of what happened: ducks, events, probe runs, measurements, holds, placements."""

from duckfleet.inventory.store.records import DuckRow, Event, Hold, Measurement, Placement, ProbeRun, Transition
from duckfleet.inventory.store.store import Store, StoreError

__all__ = [
    "DuckRow",
    "Event",
    "Hold",
    "Measurement",
    "Placement",
    "ProbeRun",
    "Store",
    "StoreError",
    "Transition",
]
