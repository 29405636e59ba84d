"""Place a model: choose the ducks, cut for them, move what they lack, sign what stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from duckfleet.fleet import lifecycle
from duckfleet.fleet.announcement import running_server
from duckfleet.fleet.compose import PreparedPlan
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.errors import NotGreen
from duckfleet.fleet.musters import gather, load_current, make_current, save_roster
from duckfleet.fleet.placing import Moved, PlacementResult, place_all
from duckfleet.fleet.reach import identify, on_all
from duckfleet.fleet.rosters import DEFAULT_MAX_AGE_S, Missing, make_roster, muster, room_of, seat, shares
from duckfleet.fleet.transfers import Source, domains_with_peers
from duckfleet.fleet.uplinks import links
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.roster import Roster
from duckfleet.inventory.site import Duck

REPLICATED_PARTS = 4


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What an operator asks of `place`. `replicas`: how much of a second copy is wanted where it fits;
    `by_bandwidth`: slices as large as the ducks read fast, and not all alike."""

    model: str
    format: str | None = None
    parts: int | None = None
    replicas: float = 1.0
    by_bandwidth: bool = False
    tp: int | None = None
    allow_degraded: bool = False
    max_age_s: float = DEFAULT_MAX_AGE_S
    source: Source = Source.AUTO

    @property
    def parts_per_slice(self) -> int:
        """A part is what another duck takes over, so a slice that has replicas is cut into several."""
        return self.parts or (REPLICATED_PARTS if self.replicas > 0 else 1)


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """What came of it. `standing`: every duck holds its share, and the roster is the current one."""

    plan: ShardPlan
    generation: int
    standing: bool
    results: tuple[PlacementResult, ...]
    left_out: tuple[Missing, ...]


def place_model(
    fleet: FleetContext,
    request: PlacementRequest,
    prepare: Callable[[Sequence[float] | None, int, Mapping[str, int]], PreparedPlan],
    report: Callable[[Moved], None] = lambda _moved: None,
) -> PlacementOutcome:
    """Ducks keep the ranks that they have. `prepare(shares, tp, rooms)` cuts the model for ranks with these shares
    (None: all alike) and holders with so many bytes of room (by address; ranks, then spares).

    Raises `NotGreen` when there are too few ducks.
    """
    site, store, keys = fleet.site, fleet.known_store, fleet.keys
    evidence = gather(site, store)
    mustered = muster(
        site.ducks, evidence, time.time(), max_age_s=request.max_age_s, allow_degraded=request.allow_degraded
    )
    tp = request.tp or len(mustered.ready)
    if not 0 < tp <= len(mustered.ready):
        reasons = "\n".join(f"{missing.duck} {missing.reason}" for missing in mustered.missing)
        wanted = f"{tp} are wanted" if tp else "at least one is needed"
        raise NotGreen(f"{len(mustered.ready)} ducks are ready, {wanted}:\n{reasons}")
    ranks, spares = seat(mustered.ready, tp, _standing_roster(fleet))
    weights = shares(ranks, evidence) if request.by_bandwidth else None
    prepared = prepare(weights, tp, {duck.address: room_of(evidence[duck.mac]) for duck in (*ranks, *spares)})
    generation = store.next_generation(_seen_generation(fleet, (*ranks, *spares)))
    plan = replace(prepared.plan, generation=generation)
    may_drop = running_server(fleet.state_dir) is None  # else it computes with what an earlier plan left
    reports = {mac: probe.report for mac, probe in store.latest_probes(outcome="ok").items()}
    results = place_all(
        site,
        keys,
        plan,
        (*ranks, *spares),
        fleet.chunks_dir,
        report,
        may_drop=may_drop,
        with_peers=lambda lacking: domains_with_peers(request.source, links(site, lacking, reports)),
    )
    for result in results:
        store.add_placement(
            generation,
            result.duck.mac,
            result.rank,
            plan.model,
            num_chunks=result.num_chunks,
            total_bytes=result.total_bytes,
            moved_bytes=result.moved_bytes,
            outcome="failed" if result.error else "ok",
        )
        for detour in result.detours:
            store.log("peer_failed", {"generation": generation, "error": detour}, result.duck)
        if result.error:
            store.log("placing_failed", {"generation": generation, "error": result.error}, result.duck)
    standing = not any(result.error for result in results)
    if standing:
        roster = make_roster(site, ranks, spares, evidence, generation, time.time())
        save_roster(fleet.rosters_dir, roster, prepared.as_generation(generation), plan.model, keys)
        make_current(fleet.rosters_dir, generation)
        for result in results:
            taken = {"generation": generation, "rank": result.rank, "moved_bytes": result.moved_bytes}
            store.transition(result.duck, "placed", {"model": plan.model, **taken}, _where_it_is_listed)
    return PlacementOutcome(plan, generation, standing, tuple(results), mustered.missing)


def _where_it_is_listed(state: str, event: str) -> str:
    """A duck that serves, or that fell silent meanwhile, stays what it is: it holds its chunks all the same."""
    return lifecycle.next_state(state, event) if lifecycle.is_listed(state, event) else state


def _standing_roster(fleet: FleetContext) -> Roster | None:
    """Whose ranks are kept; None where nothing stands that can be trusted."""
    try:
        return load_current(fleet.rosters_dir, fleet.keys).roster
    except OperatorError:
        return None


def _seen_generation(fleet: FleetContext, ducks: tuple[Duck, ...]) -> int:
    """The highest generation that these ducks have accepted; they refuse to go back, even when the store was lost."""
    seen = 0
    for _duck, identity in on_all(ducks, lambda duck: identify(fleet.site, duck, fleet.keys)):
        if not isinstance(identity, MachineError):
            seen = max(seen, identity.generation, identity.plan_generation)
    return seen
