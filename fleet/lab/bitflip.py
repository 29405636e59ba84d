"""flips one bit of a stored chunk, now and for good; in a lab of processes"""

from __future__ import annotations

import secrets
from pathlib import Path

from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.errors import OperatorError

SEAL_BYTES = 16  # at the end of a stored chunk; read when a daemon starts


def flip(fleet: FleetContext, name: str) -> str:
    """Flip a bit of what a process duck holds, and say which. Raises `OperatorError` where there is nothing to flip."""
    store = fleet.lab_dir / "stores" / name
    chunks = sorted(store.glob("*.chunk")) if store.is_dir() else []
    if not chunks:
        raise OperatorError(
            f"{name} is no process duck of a lab that is up, or it holds no chunk; `duckctl place` first"
        )
    victim = secrets.choice(chunks)
    at, bit = _flip_one(victim)
    return f"{name}: bit {bit} of byte {at} of chunk {victim.stem[:12]}… is flipped"


def _flip_one(file: Path) -> tuple[int, int]:
    """In the page cache, which the daemon maps and computes with."""
    at, bit = secrets.randbelow(file.stat().st_size - SEAL_BYTES), secrets.randbelow(8)
    with file.open("r+b") as stored:
        stored.seek(at)
        (byte,) = stored.read(1)
        stored.seek(at)
        stored.write(bytes([byte ^ 1 << bit]))
    return at, bit
