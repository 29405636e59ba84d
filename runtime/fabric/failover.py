"""Failover: what a session does about a duck that falls silent, and about one that is back.

`on_silence` is called by whoever waits for a forward, with the vectors that are missing. Parts that others hold are
theirs at once; parts that nobody holds are loaded first, on a spare or spread over everybody, while the request waits.
Then the same request is sent again. A thread looks for missing ducks and gives them their parts back.

Every change of duties has a generation, counted from 0; plan and roster keep theirs.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from duckfleet.inventory.errors import DuckfleetError, MachineError
from duckfleet.inventory.roster import RosterEntry, room_bytes
from duckfleet.runtime.errors import DuckLost

from .admission import Admission
from .echo import EchoFailed, echo
from .report import MissingVector
from .session import KEY_BYTES
from .takeover import NoRoom, Part, PlanParts, Shares, choose_places, share_out

log = logging.getLogger(__name__)

_MAX_PARALLEL = 16


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """When a duck counts as silent, and what may be done then.

    Silent is who was not heard for the longer of `silence_floor_s` and `silence_medians` median forwards of the size
    (`silence_cold_s` while too few were made), though it was asked at least three times.
    """

    silence_floor_s: float = 0.05
    silence_medians: int = 20
    silence_cold_s: float = 1.0
    reserve_bytes: int | None = None  # of a duck's memory, for its operating system; None: as placement leaves it
    rejoin_every_s: float = 1.0  # how often a missing duck is looked for, at first; less and less often if in vain
    rejoin_at_most_s: float = 30.0

    def reserve_of(self, ram_bytes: int) -> int:
        """What a duck with so much memory keeps for itself."""
        return ram_bytes - room_bytes(ram_bytes) if self.reserve_bytes is None else self.reserve_bytes


@dataclass(frozen=True, slots=True)
class FailoverEvent:
    """Something for the log. `kind`: "taken_over", "not_covered" or "rejoined"."""

    kind: str
    ducks: tuple[str, ...]
    generation: int
    text: str
    silent_ms: float = 0.0
    took_ms: float = 0.0
    moved_bytes: int = 0


@dataclass(slots=True)
class _Missing:
    """A duck that is not there. `replaced`: its parts are others'."""

    since: float
    replaced: bool
    try_at: float
    wait_s: float


class Failover:
    """Of one session. Safe from several threads; `close` ends the thread that looks for missing ducks."""

    def __init__(
        self,
        parts: PlanParts,
        ducks: Sequence[RosterEntry],
        host_addresses: Mapping[int, str],
        admission: Admission,
        policy: FailoverPolicy,
        *,
        apply: Callable[[Shares], None],
        rekey: Callable[[int, int, bytes], None],
        on_event: Callable[[FailoverEvent], None] | None,
        first_key_id: int,
    ) -> None:
        """`ducks[rank]` are ranks and spares, `host_addresses` the host's own by rank. `apply` makes shares those of
        the next request; `rekey(rank, key_id, key)` sets a duck's key."""
        self._parts, self._admission, self._policy = parts, admission, policy
        self._ducks = {duck.rank: duck for duck in ducks}
        self._host_addresses = host_addresses
        self._apply, self._rekey, self._on_event = apply, rekey, on_event
        self._next_key_id = first_key_id
        self._held: dict[int, frozenset[Part]] = {rank: parts.held_by_plan(rank) for rank in self._ducks}
        self._missing: dict[int, _Missing] = {}
        self._num_losses: dict[int, int] = {}  # how often a rank was replaced: who flaps is taken in less eagerly
        self._why = ""
        self._told: tuple[tuple[str, ...], str] = ((), "")  # the last "not_covered"
        self._generation = self._num_failovers = self._num_rejoined = 0
        self._last_at_s = self._last_took_ms = 0.0
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._seeker: threading.Thread | None = None

    # -- for the fabric ----------------------------------------------------------------------------------------

    def shares(self) -> Shares:
        """Of everybody who is there."""
        with self._changed:
            return share_out(self._parts, self._held, self._there())

    def admit_spares(self) -> None:
        """Take spares into the session. One that is not there is no failure: it is looked for from now on."""
        spares = [duck for rank, duck in self._ducks.items() if rank >= self._parts.tp]
        if not spares:
            return
        with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
            done = {duck.rank: pool.submit(self._admit, duck, from_others=True) for duck in spares}
        with self._changed:
            for rank, admitted in done.items():
                try:
                    admitted.result()
                except (DuckfleetError, EchoFailed) as error:
                    log.warning("spare %s is not there: %s", self._ducks[rank].duck, error)
                    self._miss(rank, replaced=True)

    def begin_without(self, absent: Mapping[int, DuckLost]) -> None:
        """Replace ranks that did not answer at the start of the session. Raises `DuckLost` where that cannot be."""
        if not absent:
            return
        with self._changed:
            if not self._take_over(sorted(absent), 0.0):
                told = "; ".join(map(str, absent.values()))
                raise DuckLost(f"{told}; {self._why}", ducks=[self._ducks[rank].duck for rank in sorted(absent)])

    def on_silence(self, waited_us: int, missing: Sequence[tuple[int, int, int, int, int, int, int]]) -> bool:
        """Whether the request is to be sent again, because others compute what is missing now."""
        vectors = [MissingVector(*vector) for vector in missing]
        ranks = {vector.rank for vector in vectors}
        silent_ms = max((vector.silent_us for vector in vectors), default=waited_us) / 1e3
        with self._changed:
            if self._closed:
                return False
            replaced = {rank for rank, missing_duck in self._missing.items() if missing_duck.replaced}
            fresh = sorted(ranks - replaced)
            if not fresh:
                return True
            done = self._take_over(fresh, silent_ms)
            if not done:
                for rank in fresh:
                    self._miss(rank, replaced=False)
            return done

    def why_not(self) -> str:
        """Why the last loss could not be made good; empty when it was, or none was tried."""
        return self._why

    def stats(self) -> dict[str, float]:
        """Numbers for metrics. Never waits for a failover under way."""
        missing = list(self._missing.values())
        return {
            "generation": self._generation,
            "count": self._num_failovers,
            "rejoined": self._num_rejoined,
            "last_at_s": self._last_at_s,
            "last_took_ms": self._last_took_ms,
            "ducks_missing": len(missing),
        }

    def missing_ducks(self) -> tuple[str, ...]:
        """Names of those that are not there."""
        return tuple(self._ducks[rank].duck for rank in sorted(list(self._missing)))

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._changed.acquire(timeout=0.1):
            self._changed.notify_all()
            self._changed.release()

    # -- taking over -------------------------------------------------------------------------------------------

    def _there(self) -> list[int]:
        return sorted(rank for rank in self._ducks if rank not in self._missing or not self._missing[rank].replaced)

    def _take_over(self, fresh: Sequence[int], silent_ms: float) -> bool:
        begun = time.monotonic()
        names = tuple(self._ducks[rank].duck for rank in fresh)
        there = [rank for rank in self._there() if rank not in fresh]
        if not there:
            self._why = "no duck is left that could compute its part; `duckctl wake --wait` starts them again"
            return False
        shares = share_out(self._parts, self._held, there)
        moved_bytes = 0
        if shares.uncovered:
            try:
                moved_bytes = self._load(shares.uncovered, there)
            except DuckfleetError as error:
                self._tell_not_covered(names, str(error))
                return False
            shares = share_out(self._parts, self._held, there)
        if self._closed or shares.uncovered:
            return False
        self._apply(shares)
        for rank in fresh:
            self._miss(rank, replaced=True)
            self._num_losses[rank] = self._num_losses.get(rank, 0) + 1
        self._generation += 1
        self._num_failovers += 1
        self._why = ""
        took_ms = (time.monotonic() - begun) * 1e3
        self._last_at_s, self._last_took_ms = time.time(), silent_ms + took_ms
        whose = "its" if len(names) == 1 else "their"
        how = f"{moved_bytes / 2**20:.1f} MiB were loaded for it" if moved_bytes else "all of it was held by others"
        self._tell(
            FailoverEvent(
                "taken_over",
                names,
                self._generation,
                f"{', '.join(names)} fell silent; others compute {whose} part of the model now ({how})",
                silent_ms,
                took_ms,
                moved_bytes,
            )
        )
        return True

    def _load(self, uncovered: Sequence[Part], there: Sequence[int]) -> int:
        """Give these parts to ducks that have room. Raises `MachineError`, `OperatorError`."""
        if not self._admission.can_load:
            raise MachineError("nobody else holds its part of the model, and there is no chunk store to load it from")
        candidates = set(there)
        with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
            while True:
                identities = {rank: pool.submit(self._admission.identity, self._ducks[rank]) for rank in candidates}
                room = {}
                for rank, identity in identities.items():
                    try:
                        told = identity.result()
                    except DuckfleetError as error:
                        log.warning("%s takes nothing over: %s", self._ducks[rank].duck, error)
                        continue
                    ram_bytes = self._ducks[rank].ram_bytes
                    left = min(told.mem_available_bytes, ram_bytes - told.held_bytes)
                    room[rank] = left - self._policy.reserve_of(ram_bytes)
                spares = [rank for rank in room if rank >= self._parts.tp]
                places = choose_places(uncovered, self._parts.num_bytes, room, spares)
                if isinstance(places, NoRoom):
                    raise MachineError(
                        f"its part of the model needs {places.needed_bytes / 2**20:.1f} MiB on other ducks, "
                        f"{places.room_bytes / 2**20:.1f} MiB are free on the {len(room)} that are there"
                    )
                held = {rank: self._held[rank] | frozenset(some) for rank, some in places.items()}
                loads = {
                    rank: pool.submit(self._admission.extend, self._ducks[rank], parts) for rank, parts in held.items()
                }
                moved_bytes, failed = 0, set()
                for rank, load in loads.items():
                    try:
                        moved_bytes += load.result()
                        self._held[rank] = held[rank]
                    except MachineError as error:  # others pass: what this host lacks, no duck can mend
                        log.warning("%s could not take parts over: %s", self._ducks[rank].duck, error)
                        failed.add(rank)
                if not failed:
                    return moved_bytes
                candidates = set(room) - failed
                given = {part for rank in held if rank not in failed for part in held[rank]}
                uncovered = [part for part in uncovered if part not in given]

    # -- coming back -------------------------------------------------------------------------------------------

    def _miss(self, rank: int, *, replaced: bool) -> None:
        now = time.monotonic()
        if rank in self._missing:
            self._missing[rank].replaced |= replaced
        else:
            wait_s = min(
                self._policy.rejoin_at_most_s, self._policy.rejoin_every_s * 2 ** self._num_losses.get(rank, 0)
            )
            self._missing[rank] = _Missing(now, replaced, now + wait_s, wait_s)
        if self._seeker is None and not self._closed:
            self._seeker = threading.Thread(target=self._seek, name="failover", daemon=True)
            self._seeker.start()
        self._changed.notify_all()

    def _seek(self) -> None:
        """Look for missing ducks until the session is closed."""
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = [rank for rank, missing in self._missing.items() if missing.try_at <= now]
                if not due:
                    next_at = min((missing.try_at for missing in self._missing.values()), default=now + 3600)
                    self._changed.wait(next_at - now)
                    continue
            for rank in due:
                self._seek_one(rank)

    def _admit(self, duck: RosterEntry, *, from_others: bool = False) -> int:
        """Raises `EchoFailed` and what `Admission.admit` raises. Returns bytes moved."""
        key = secrets.token_bytes(KEY_BYTES)
        with self._changed:
            key_id = self._next_key_id
            self._next_key_id += 1
            held = self._held[duck.rank]
        echo(self._host_addresses[duck.rank], duck.address, duck.data_port)
        admitted = self._admission.admit(duck, held, key_id, key, from_others=from_others)
        with self._changed:
            self._held[duck.rank] = admitted.held
            if admitted.rekeyed and not self._closed:
                self._rekey(duck.rank, key_id, key)
        return admitted.moved_bytes

    def _seek_one(self, rank: int) -> None:
        duck = self._ducks[rank]
        try:
            moved_bytes = self._admit(duck)
        except (DuckfleetError, EchoFailed) as error:
            log.debug("%s is still missing: %s", duck.duck, error)
            with self._changed:
                if (missing := self._missing.get(rank)) is not None:
                    missing.wait_s = min(self._policy.rejoin_at_most_s, missing.wait_s * 1.5)
                    missing.try_at = time.monotonic() + missing.wait_s
            return
        with self._changed:
            missing = self._missing.get(rank)
            if self._closed or missing is None:
                return
            if missing.replaced:
                missing.replaced = False  # it counts as there from here on
                self._apply(share_out(self._parts, self._held, self._there()))
                self._generation += 1
            self._num_rejoined += 1
            away_s = time.monotonic() - missing.since
            self._tell(
                FailoverEvent(
                    "rejoined",
                    (duck.duck,),
                    self._generation,
                    f"{duck.duck} is back after {away_s:.1f} s and computes its part of the model again",
                    moved_bytes=moved_bytes,
                )
            )
            del self._missing[rank]  # last: `stats` takes no lock, and who finds nobody missing was told of the return

    # -- telling -----------------------------------------------------------------------------------------------

    def _tell_not_covered(self, names: tuple[str, ...], why: str) -> None:
        told = (names, why)
        self._why = why
        if told != self._told:
            self._told = told
            self._tell(FailoverEvent("not_covered", names, self._generation, f"{', '.join(names)} fell silent: {why}"))

    def _tell(self, event: FailoverEvent) -> None:
        log.log(logging.INFO if event.kind == "rejoined" else logging.WARNING, "%s", event.text)
        if self._on_event is not None:
            self._on_event(event)
