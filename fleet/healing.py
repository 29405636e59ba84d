"""Chunks that a duck's scrub found damaged are brought to it again while it serves: from here, or another duck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.peers import fetch_from_any
from duckfleet.fleet.placing import SpoiltHere, put_file
from duckfleet.fleet.reach import connect, on_all
from duckfleet.inventory.errors import DuckfleetError, MachineError, OperatorError
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.control import ControlClient
from duckfleet.runtime.wire import MAX_CHUNK_BYTES, FleetKeys


@dataclass(frozen=True, slots=True)
class Healing:
    """What a duck had damaged, and what could not be mended, with why."""

    duck: Duck
    mended: tuple[str, ...]  # digests
    failed: tuple[tuple[str, str], ...]


def heal(site: Site, keys: FleetKeys | None, ducks: Sequence[Duck], chunks_dir: Path) -> list[Healing]:
    """Ask every duck, and mend what can be mended. Ducks without damage, and those that do not answer, are left out.

    A chunk that this host's store lacks is fetched from one of the other `ducks` that holds it.
    """

    def ask(duck: Duck) -> list[str]:
        with connect(site, duck, keys) as client:
            return _damaged(client.stats())

    damaged = {duck.mac: digests for duck, digests in on_all(ducks, ask) if isinstance(digests, list) and digests}
    hurt = [duck for duck in ducks if duck.mac in damaged]
    if not hurt:
        return []
    missing = sorted({d for digests in damaged.values() for d in digests if not (chunks_dir / d).exists()})
    healer = _Healer(site, keys, ducks, chunks_dir, damaged, missing)
    return [healing for _duck, healing in on_all(hurt, healer.mend_all) if isinstance(healing, Healing)]


class _Healer:
    """One round of mending; who else holds what this host lacks is asked once it is needed."""

    def __init__(
        self,
        site: Site,
        keys: FleetKeys | None,
        ducks: Sequence[Duck],
        chunks_dir: Path,
        damaged: Mapping[str, Sequence[str]],
        missing: Sequence[str],
    ) -> None:
        self._site, self._keys, self._ducks, self._chunks_dir = site, keys, ducks, chunks_dir
        self._damaged = damaged
        self._holders = self._ask_holders(missing) if missing else {}

    def mend_all(self, duck: Duck) -> Healing:
        mended: list[str] = []
        failed: list[tuple[str, str]] = []
        with connect(self._site, duck, self._keys) as client:
            for digest in self._damaged[duck.mac]:
                try:
                    self._mend(client, duck, digest)
                    mended.append(digest)
                except MachineError as error:
                    failed.append((digest, str(error)))
                    break  # the duck, or the way to it
                except DuckfleetError as error:
                    failed.append((digest, str(error)))
        return Healing(duck, tuple(mended), tuple(failed))

    def _mend(self, client: ControlClient, duck: Duck, digest: str) -> None:
        try:
            put_file(client, duck, self._chunks_dir / digest)
        except (SpoiltHere, OperatorError) as error:  # it is not to be had here
            holders = self._holders.get(digest) or self._ask_holders([digest])[digest]
            givers = [holder for holder in holders if holder.mac != duck.mac]
            reason = fetch_from_any(self._site, self._keys, client, givers, digest, MAX_CHUNK_BYTES)
            if reason:
                raise OperatorError(f"{error}; {reason}") from error

    def _ask_holders(self, digests: Sequence[str]) -> dict[str, list[Duck]]:
        """Which ducks hold which of these, whole."""

        def ask(duck: Duck) -> list[bool]:
            with connect(self._site, duck, self._keys) as client:
                return client.have(digests)

        holders: dict[str, list[Duck]] = {digest: [] for digest in digests}
        for duck, held in on_all(self._ducks, ask):
            if isinstance(held, list):
                for digest, is_held in zip(digests, held, strict=True):
                    if is_held:
                        holders[digest].append(duck)
        return {digest: sorted(found, key=lambda duck: duck.name) for digest, found in holders.items()}


def _damaged(stats: dict[str, object]) -> list[str]:
    scrub = stats.get("scrub")
    names = scrub.get("damaged_chunks") if isinstance(scrub, dict) else None
    digests = names if isinstance(names, list) else []
    return [name for name in digests if isinstance(name, str) and len(name) == 64 and name.isalnum()]
