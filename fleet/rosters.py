"""Which ducks serve: the roster made from the site, the store's evidence and holds, and what keeps others out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from duckfleet.fleet.probe_facts import ProbeFacts
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry, room_bytes
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import DuckRow, Hold

GREEN_STATES = ("healthy", "placed", "serving")
SHARE_STEP = 1 / 16
DEFAULT_MAX_AGE_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a duck when a roster is made."""

    row: DuckRow | None
    facts: ProbeFacts | None  # of the newest complete probe
    probed_at_s: float
    holds: tuple[Hold, ...] = ()


def room_of(evidence: Evidence) -> int:
    """What a duck has for packed chunks, by its newest probe."""
    return room_bytes(evidence.facts.ram_bytes) if evidence.facts else 0


@dataclass(frozen=True, slots=True)
class Missing:
    """A duck of the site that cannot serve, and why."""

    duck: str
    reason: str


@dataclass(frozen=True, slots=True)
class Muster:
    """Who can serve now, by address, and who cannot."""

    ready: tuple[Duck, ...]
    missing: tuple[Missing, ...]


def muster(
    ducks: Sequence[Duck],
    evidence: Mapping[str, Evidence],
    now_s: float,
    *,
    max_age_s: float = DEFAULT_MAX_AGE_S,
    allow_degraded: bool = False,
) -> Muster:
    """Split the ducks into ready and missing."""
    ready, missing = [], []
    for duck in ducks:
        reason = why_missing(evidence.get(duck.mac), now_s, max_age_s=max_age_s, allow_degraded=allow_degraded)
        if reason is None:
            ready.append(duck)
        else:
            missing.append(Missing(duck.name, reason))
    return Muster(tuple(ready), tuple(missing))


def why_missing(
    evidence: Evidence | None, now_s: float, *, max_age_s: float = DEFAULT_MAX_AGE_S, allow_degraded: bool = False
) -> str | None:
    """Why a duck cannot serve, with what to do; None when it can."""
    if evidence is None or evidence.row is None:
        return "was never seen; `duckctl wake` it"
    if evidence.holds:
        hold = evidence.holds[0]
        return f"held by {hold.placed_by} ({hold.kind}): {hold.reason}"
    row = evidence.row
    if row.state == "degraded" and not allow_degraded:
        reasons = "; ".join(map(str, row.evidence.get("reasons", []))) or "see `duckctl log`"
        return f"is degraded: {reasons} (--allow-degraded takes it all the same)"
    if row.state not in GREEN_STATES and row.state != "degraded":
        return f"is {row.state}{_ADVICE.get(row.state, '')}"
    if evidence.facts is None:
        return "has never been probed; `duckctl probe` it"
    age_s = now_s - evidence.probed_at_s
    if age_s > max_age_s:
        return f"was last probed {age_s / 3600:.1f} h ago, the limit is {max_age_s / 3600:g} h; `duckctl probe` it"
    return None


_ADVICE = {
    "unknown": "; `duckctl wake` it",
    "off": "; `duckctl wake` it",
    "lost": ": it stopped answering; `duckctl log` tells when, `duckctl wake` tries again",
    "up": " but not probed since it came up; `duckctl probe` it",
    "quarantined": "; `duckctl release` lifts that",
}


def seat(ready: Sequence[Duck], tp: int, standing: Roster | None) -> tuple[tuple[Duck, ...], tuple[Duck, ...]]:
    """Who is which rank, and who is a spare (in order), so that a second placement moves as little as can be.

    Where the standing roster has as many ranks, its ducks keep theirs, and what is free goes to spares first (they may
    hold part of it), then by address. With the same rooms, format and parts only ducks whose rank is new then move
    anything, each at most what it holds: its slice and its replicas. A different tp moves the borders of all slices,
    and with them up to everything, so ranks are dealt by address. Raises ValueError for fewer ducks than ranks.
    """
    if len(ready) < tp:
        raise ValueError(f"{len(ready)} ducks for {tp} ranks")
    by_name = {duck.name: duck for duck in ready}
    kept: dict[int, Duck] = {}
    waiting: list[Duck] = []
    if standing is not None and standing.tp == tp:
        kept = {entry.rank: by_name.pop(entry.duck) for entry in standing.entries if entry.duck in by_name}
        waiting = [by_name.pop(entry.duck) for entry in standing.spares if entry.duck in by_name]
    waiting += [duck for duck in ready if duck.name in by_name]
    queue = iter(waiting)
    ranks = tuple(kept[rank] if rank in kept else next(queue) for rank in range(tp))
    return ranks, tuple(queue)


def shares(ranks: Sequence[Duck], evidence: Mapping[str, Evidence]) -> tuple[float, ...] | None:
    """How large a slice each rank gets by its measured read bandwidth, 1.0 for the median; None: all alike.

    In steps of a sixteenth, and 1.0 for what is within a step and a half of it, so that two measurements of one fleet
    give the same shares, and the next placement moves nothing. A duck that did not say gets 1.0.
    """
    known = [facts.read_bandwidth_bytes_per_s for duck in ranks if (facts := evidence[duck.mac].facts) is not None]
    measured = [bandwidth for bandwidth in known if bandwidth > 0]
    if not measured:
        return None
    usual = median(measured)

    def share(duck: Duck) -> float:
        facts = evidence[duck.mac].facts
        ratio = facts.read_bandwidth_bytes_per_s / usual if facts is not None else 0.0
        if ratio <= 0 or abs(ratio - 1.0) <= 1.5 * SHARE_STEP:
            return 1.0
        return max(SHARE_STEP, round(ratio / SHARE_STEP) * SHARE_STEP)

    found = tuple(share(duck) for duck in ranks)
    return None if len(set(found)) == 1 else found


def make_roster(
    site: Site,
    ranks: Sequence[Duck],
    spares: Sequence[Duck],
    evidence: Mapping[str, Evidence],
    generation: int,
    now_s: float,
) -> Roster:
    """An unsigned roster with these ducks in this order."""
    used = {duck.domain for duck in (*ranks, *spares)}
    domains = tuple(
        RosterDomain(domain.name, domain.host_address, domain.broadcast, domain.mtu)
        for domain in site.domains
        if domain.name in used
    )

    def entry(rank: int, duck: Duck) -> RosterEntry:
        facts = evidence[duck.mac].facts
        assert facts is not None
        domain = site.domain(duck.domain)
        return RosterEntry(
            rank=rank,
            duck=duck.name,
            address=duck.address,
            domain=duck.domain,
            control_port=domain.control_port,
            data_port=domain.data_port,
            ram_bytes=facts.ram_bytes,
            read_bandwidth_bytes_per_s=facts.read_bandwidth_bytes_per_s,
            num_threads=facts.num_threads,
            evidence_at_s=evidence[duck.mac].probed_at_s,
        )

    entries = tuple(entry(rank, duck) for rank, duck in enumerate(ranks))
    others = tuple(entry(len(ranks) + index, duck) for index, duck in enumerate(spares))
    return Roster(generation, now_s, domains, entries, others)


def objections(
    roster: Roster,
    site: Site,
    evidence: Mapping[str, Evidence],
    now_s: float,
    *,
    max_age_s: float = DEFAULT_MAX_AGE_S,
    allow_degraded: bool = False,
    min_tp: int | None = None,
) -> list[Missing]:
    """Why this roster is not one to serve on: members that are not green or whose evidence is too old, and ducks of the
    site that it leaves out although they are wanted. Empty: serve."""
    found = []
    members = {entry.duck: entry for entry in roster.entries}
    for entry in roster.entries:
        duck = site.find(entry.duck)
        if duck is None:
            found.append(Missing(entry.duck, f"is rank {entry.rank} but not in {site.path} any more"))
            continue
        reason = why_missing(evidence.get(duck.mac), now_s, max_age_s=max_age_s, allow_degraded=allow_degraded)
        if reason is None and duck.address != entry.address:
            reason = f"has moved from {entry.address} to {duck.address} since; `duckctl place` again"
        if reason is None and now_s - entry.evidence_at_s > max_age_s:
            reason = (
                f"the roster rests on a probe of {(now_s - entry.evidence_at_s) / 3600:.1f} h ago, the limit is "
                f"{max_age_s / 3600:g} h; `duckctl roster` makes a new one"
            )
        if reason is not None:
            found.append(Missing(entry.duck, reason))
    if min_tp is not None and roster.tp >= min_tp:
        return found
    spares = {entry.duck for entry in roster.spares}
    for duck in site.ducks:
        if duck.name not in members and duck.name not in spares:
            reason = why_missing(evidence.get(duck.mac), now_s, max_age_s=max_age_s, allow_degraded=allow_degraded)
            found.append(Missing(duck.name, reason or "is ready but not in the roster; `duckctl place` again"))
    return found
