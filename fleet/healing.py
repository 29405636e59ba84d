"""Chunks that a duck's scrub found damaged are sent to it again, while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.placing import put_file
from duckfleet.fleet.reach import connect, on_all
from duckfleet.inventory.errors import DuckfleetError, MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.wire import FleetKeys


@dataclass(frozen=True, slots=True)
class Healing:
    """What a duck had damaged, and what could not be mended, with why."""

    duck: Duck
    mended: tuple[str, ...]  # digests
    failed: tuple[tuple[str, str], ...]


def heal(site: Site, keys: FleetKeys | None, ducks: Sequence[Duck], chunks_dir: Path) -> list[Healing]:
    """Ask every duck, and mend what can be mended. Ducks without damage, and those that do not answer, are left out."""
    found = []
    for _duck, healing in on_all(ducks, lambda duck: _heal_one(site, keys, duck, chunks_dir)):
        if isinstance(healing, Healing) and (healing.mended or healing.failed):
            found.append(healing)
    return found


def _heal_one(site: Site, keys: FleetKeys | None, duck: Duck, chunks_dir: Path) -> Healing:
    mended: list[str] = []
    failed: list[tuple[str, str]] = []
    with connect(site, duck, keys) as client:
        for digest in _damaged(client.stats()):
            try:
                put_file(client, duck, chunks_dir / digest)
                mended.append(digest)
            except MachineError as error:
                failed.append((digest, str(error)))
                break  # the duck, or the way to it
            except DuckfleetError as error:
                failed.append((digest, str(error)))
    return Healing(duck, tuple(mended), tuple(failed))


def _damaged(stats: dict[str, object]) -> list[str]:
    scrub = stats.get("scrub")
    names = scrub.get("damaged_chunks") if isinstance(scrub, dict) else None
    digests = names if isinstance(names, list) else []
    return [name for name in digests if isinstance(name, str) and len(name) == 64 and name.isalnum()]
