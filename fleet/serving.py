"""Serve what is placed: only on a roster that is green, and with the ducks' state kept while it lasts."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duckfleet.fleet import compose, lifecycle
from duckfleet.fleet.announcement import Announcement, announce, only_server, retract
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.errors import NotGreen
from duckfleet.fleet.healing import heal
from duckfleet.fleet.musters import Standing, gather, load_current, make_current, save_roster
from duckfleet.fleet.rosters import DEFAULT_MAX_AGE_S, Evidence, Missing, make_roster, objections
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.site import Duck
from duckfleet.inventory.store import Store, StoreError
from duckfleet.runtime.errors import DuckLost

RENEW_S = 20.0


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What an operator asks of `serve`."""

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8021
    ctx: int | None = None  # 4096, or what the model has
    deadline_s: float = 5.0
    max_queue: int = 64
    wire_dtype: str = "f32"
    num_threads: int | None = None
    host_format: str | None = None
    api_keys: tuple[str, ...] = ()
    allow_degraded: bool = False
    min_tp: int | None = None
    max_age_s: float = DEFAULT_MAX_AGE_S
    silence_floor_s: float = 0.05
    silence_medians: int = 20


def renew_roster(fleet: FleetContext, standing: Standing, evidence: Mapping[str, Evidence]) -> Standing:
    """The same ducks and ranks with the newest evidence, signed anew; the standing one when nothing is newer."""
    ducks = [fleet.site.find(entry.duck) for entry in standing.roster.entries]
    ranks = [duck for duck in ducks if duck is not None and evidence[duck.mac].facts is not None]
    newer = any(
        evidence[duck.mac].probed_at_s > entry.evidence_at_s
        for duck, entry in zip(ranks, standing.roster.entries, strict=False)
    )
    if len(ranks) < standing.roster.tp or not newer:
        return standing
    spares = [duck for entry in standing.roster.spares if (duck := fleet.site.find(entry.duck)) is not None]
    spares = [duck for duck in spares if evidence[duck.mac].facts is not None]
    generation = fleet.store.next_generation(standing.roster.generation)
    roster = make_roster(fleet.site, ranks, spares, evidence, generation, time.time())
    plan_text = compose.plan_of_generation(standing.plan_text, generation)
    save_roster(fleet.rosters_dir, roster, plan_text, standing.model, fleet.keys)
    make_current(fleet.rosters_dir, generation)
    return load_current(fleet.rosters_dir, fleet.keys)


def serve_model(fleet: FleetContext, request: ServeRequest, say: Callable[[str], None]) -> None:
    """Until the server ends. Raises `NotGreen` with every duck that is missing and why, before anything is loaded."""
    standing = load_current(fleet.rosters_dir, fleet.keys)
    if request.model is not None and request.model != standing.model:
        raise OperatorError(
            f"{request.model} is not placed, {standing.model} is; `duckctl place {request.model}` changes that"
        )
    store = fleet.known_store
    against = objections(
        standing.roster,
        fleet.site,
        gather(fleet.site, store),
        time.time(),
        max_age_s=request.max_age_s,
        allow_degraded=request.allow_degraded,
        min_tp=request.min_tp,
    )
    silent = [missing for missing in against if _may_be_replaced(fleet, standing, missing)]
    if request.min_tp is not None and standing.roster.tp - len(silent) >= request.min_tp:
        for missing in silent:
            say(f"starting without duck {missing.duck}: it {missing.reason}")
        against = [missing for missing in against if missing not in silent]
    if against:
        raise NotGreen(refusal(standing, against))
    ducks = [duck for entry in standing.roster.entries if (duck := fleet.site.find(entry.duck)) is not None]
    spares = [duck for entry in standing.roster.spares if (duck := fleet.site.find(entry.duck)) is not None]
    generation = standing.roster.generation
    evidence = {"model": standing.model, "generation": generation}
    with only_server(fleet.state_dir), _Serving(fleet, store, ducks, spares, evidence) as serving:

        def on_ready(url: str) -> None:
            serving.started(url)
            announce(fleet.state_dir, Announcement(url, standing.model, generation, os.getpid()))

        try:
            compose.run_server(
                fleet, standing, request, say=say, on_ready=on_ready, on_lost=serving.lost, on_failover=serving.failover
            )
        finally:
            retract(fleet.state_dir, os.getpid())


def _may_be_replaced(fleet: FleetContext, standing: Standing, missing: Missing) -> bool:
    """Whether this is a rank that is only not there: others can compute its part of the model meanwhile."""
    duck = fleet.site.find(missing.duck)
    if duck is None or missing.duck not in {entry.duck for entry in standing.roster.entries}:
        return False
    row = fleet.known_store.ducks().get(duck.mac)
    return row is not None and row.state in (*lifecycle.SILENT, *lifecycle.STARTING)


def refusal(standing: Standing, against: Sequence[Missing]) -> str:
    lines = [f"duck {missing.duck} {missing.reason}" for missing in against]
    first = (
        f"the roster of generation {standing.roster.generation} is not green, {len(against)} ducks are not ready "
        f"(--min-tp or --allow-degraded say otherwise):"
    )
    return "\n".join([first, *lines])


class _Serving:
    """Ducks are `serving` from the moment the server listens; a server that is killed stops renewing that.

    A duck that does not answer a forward, or the start of the session, becomes `lost` with the error as evidence.
    """

    def __init__(
        self,
        fleet: FleetContext,
        store: Store,
        ducks: Sequence[Duck],
        spares: Sequence[Duck],
        evidence: Mapping[str, object],
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.ducks = ducks
        self.spares = spares
        self.evidence = evidence
        # The thread that decodes only leaves a note here: it never waits for the store.
        self._noted: queue.SimpleQueue[_Note | None] = queue.SimpleQueue()
        self._renewer = threading.Thread(target=self._renew, name="renew-serving", daemon=True)

    def __enter__(self) -> _Serving:
        return self

    def started(self, url: str) -> None:
        for duck in self.ducks:
            self._take(duck, "serve_started", {**self.evidence, "url": url})
        self._renewer.start()

    def lost(self, names: Sequence[str], error: str) -> None:
        """Note ducks that did not answer; returns at once."""
        self._noted.put(_Note("lost", tuple(names), {"error": error}))

    def failover(self, kind: str, names: Sequence[str], evidence: Mapping[str, object]) -> None:
        """Note what the fabric did about missing ducks (its `FailoverEvent`); returns at once."""
        self._noted.put(_Note(kind, tuple(names), evidence))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._noted.put(None)  # wakes the renewer
        if isinstance(error, DuckLost):
            self._take_note(_Note("lost", error.ducks, {"error": str(error)}))
        if isinstance(error, MachineError):
            self.store.log("serve_failed", {**self.evidence, "error": str(error)})
        if self._renewer.ident is not None:
            self._renewer.join()
            for duck in self.ducks:
                self._take(duck, "serve_ended", self.evidence)

    def _take(self, duck: Duck, event: str, evidence: Mapping[str, object]) -> None:
        state = self.store.ducks()[duck.mac].state
        if lifecycle.is_listed(state, event):
            self.store.transition(duck, event, evidence, lifecycle.next_state)

    def _renew(self) -> None:
        renew_at_s = time.monotonic() + RENEW_S
        while True:
            try:
                noted = self._noted.get(timeout=max(0.0, renew_at_s - time.monotonic()))
            except queue.Empty:
                noted = _Note("", (), {})
            if noted is None:
                return
            try:
                self._take_note(noted)
                if time.monotonic() >= renew_at_s:
                    renew_at_s += RENEW_S
                    self.store.renew([duck.mac for duck in self.ducks], "serving")
                    self._heal()
            except StoreError:
                continue  # the disk may be full for a while; tokens still flow

    def _heal(self) -> None:
        """Bring chunks again that the ducks' scrubs found damaged, spares' among them."""
        fleet = self.fleet
        states = self.store.ducks()
        there = [duck for duck in self.ducks if states[duck.mac].state == "serving"]
        there += [duck for duck in self.spares if states[duck.mac].state == "placed"]
        for healing in heal(fleet.site, fleet.keys, there, fleet.chunks_dir):
            for digest in healing.mended:
                self.store.log("chunk_mended", {"digest": digest}, healing.duck)
            for digest, error in healing.failed:
                self.store.log("chunk_not_mended", {"digest": digest, "error": error}, healing.duck)

    def _take_note(self, note: _Note) -> None:
        states = self.store.ducks() if note.ducks else {}
        if note.kind in ("taken_over", "not_covered", "rejoined"):
            self.store.log(f"failover_{note.kind}", {**self.evidence, **note.evidence, "ducks": list(note.ducks)})
        for duck in self.ducks:
            if duck.name not in note.ducks:
                continue
            if note.kind == "rejoined":
                self._take(duck, "rejoined", {**self.evidence, **note.evidence})
            elif states[duck.mac].state in ("placed", "serving"):  # said once
                self._take(duck, "went_silent", {**self.evidence, **note.evidence})


@dataclass(frozen=True, slots=True)
class _Note:
    """What the decoding thread leaves for the one that writes to the store."""

    kind: str
    ducks: tuple[str, ...]
    evidence: Mapping[str, object]
