"""Who may serve, why others may not, and what makes a standing roster one to refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.probe_facts import ProbeFacts
from duckfleet.fleet.rosters import Evidence, make_roster, muster, objections, room_of, seat, shares, why_missing
from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import DuckRow, Hold
from duckfleet.runtime.planner import FfnShape, ModelShape, check, cut, held_bytes, movement, replicate

NOW = 1_000_000.0
FACTS = ProbeFacts(32 << 30, 4, 2e10, "N100", "avx2")
PLAN = plan_lab("abcd", 4, num_domains=2)
SITE = Site("lab", Path("site.toml"), PLAN.domains, PLAN.ducks, ())


def evidence(state: str = "healthy", *, age_s: float = 60.0, facts: ProbeFacts | None = FACTS) -> dict[str, Evidence]:
    return {
        duck.mac: Evidence(
            DuckRow(duck.mac, duck.name, duck.address, duck.domain, state, NOW - 100, NOW - 100), facts, NOW - age_s
        )
        for duck in SITE.ducks
    }


def test_all_green_all_ready() -> None:
    mustered = muster(SITE.ducks, evidence(), NOW)
    assert mustered.ready == SITE.ducks
    assert mustered.missing == ()


REASONS = [
    ("unknown", {}, "is unknown; `duckctl wake` it"),
    ("lost", {}, "stopped answering"),
    ("up", {}, "not probed"),
    ("quarantined", {}, "duckctl release"),
    ("degraded", {}, "--allow-degraded"),
    ("healthy", {"facts": None}, "never been probed"),
    ("healthy", {"age_s": 13 * 3600.0}, "last probed 13.0 h ago, the limit is 12 h"),
]


@pytest.mark.parametrize(("state", "changes", "reason"), REASONS)
def test_each_reason_to_be_missing_is_said(state: str, changes: dict[str, object], reason: str) -> None:
    known = evidence(state, **changes)[SITE.ducks[0].mac]  # type: ignore[arg-type]
    assert reason in str(why_missing(known, NOW))


def test_a_hold_outweighs_good_health_and_names_who_and_why() -> None:
    hold = Hold(1, SITE.ducks[0].mac, "human", "fan rattles", "ann", 0.0)
    known = replace(evidence()[SITE.ducks[0].mac], holds=(hold,))
    assert why_missing(known, NOW) == "held by ann (human): fan rattles"


def test_a_degraded_duck_is_taken_when_the_operator_says_so() -> None:
    mustered = muster(SITE.ducks, evidence("degraded"), NOW, allow_degraded=True)
    assert mustered.ready == SITE.ducks


def test_a_duck_never_seen_is_missing() -> None:
    assert muster(SITE.ducks, {}, NOW).missing[0].reason.startswith("was never seen")


def test_ranks_spares_domains_and_evidence_stand_in_the_roster() -> None:
    roster = make_roster(SITE, SITE.ducks[:3], SITE.ducks[3:], evidence(), 7, NOW)
    assert [entry.rank for entry in roster.entries] == [0, 1, 2]
    assert [entry.duck for entry in roster.spares] == [SITE.ducks[3].name]
    assert [domain.name for domain in roster.domains] == ["d1", "d2"]
    first = roster.entries[0]
    assert (first.address, first.control_port, first.data_port) == ("127.21.1.101", 47_001, 47_002)
    assert (first.ram_bytes, first.num_threads, first.evidence_at_s) == (32 << 30, 4, NOW - 60)
    assert make_roster(SITE, SITE.ducks[:1], (), evidence(), 7, NOW).domains == roster.domains[:1]


FULL = make_roster(SITE, SITE.ducks, (), evidence(), 7, NOW)
SHORT = make_roster(SITE, SITE.ducks[:3], (), evidence(), 7, NOW)


def test_a_full_and_fresh_roster_has_nothing_against_it() -> None:
    assert objections(FULL, SITE, evidence(), NOW) == []


def test_a_short_roster_names_the_duck_that_is_missing_and_why() -> None:
    known = evidence()
    known[SITE.ducks[3].mac] = evidence("lost")[SITE.ducks[3].mac]
    (against,) = objections(SHORT, SITE, known, NOW)
    assert against.duck == SITE.ducks[3].name
    assert "lost" in against.reason
    assert objections(SHORT, SITE, known, NOW, min_tp=3) == []
    assert len(objections(SHORT, SITE, known, NOW, min_tp=4)) == 1


def test_a_spare_is_not_missing() -> None:
    roster = make_roster(SITE, SITE.ducks[:3], SITE.ducks[3:], evidence(), 7, NOW)
    assert objections(roster, SITE, evidence(), NOW) == []


def test_a_member_that_is_not_green_any_more_is_named() -> None:
    known = evidence()
    known[SITE.ducks[1].mac] = evidence("lost")[SITE.ducks[1].mac]
    (against,) = objections(FULL, SITE, known, NOW)
    assert against.duck == SITE.ducks[1].name


def test_a_roster_that_rests_on_old_probes_is_stale_though_newer_ones_exist() -> None:
    later = NOW + 13 * 3600
    fresh = {mac: replace(known, probed_at_s=later - 60) for mac, known in evidence().items()}
    against = objections(FULL, SITE, fresh, later)
    assert len(against) == 4
    assert all("duckctl roster" in missing.reason for missing in against)


def test_a_member_that_moved_or_left_the_site_is_named() -> None:
    moved = replace(SITE.ducks[0], address="127.21.1.108")
    (against,) = objections(FULL, replace(SITE, ducks=(moved, *SITE.ducks[1:])), evidence(), NOW)
    assert "has moved" in against.reason
    (against,) = objections(FULL, replace(SITE, ducks=SITE.ducks[1:]), evidence(), NOW)
    assert "not in site.toml any more" in against.reason


@pytest.mark.parametrize(("ram_bytes", "room"), [(32 << 30, (32 << 30) - (3 << 29)), (1 << 30, 3 << 28), (0, 0)])
def test_a_small_duck_keeps_a_quarter_of_its_memory_for_itself(ram_bytes: int, room: int) -> None:
    known = evidence(facts=replace(FACTS, ram_bytes=ram_bytes))[SITE.ducks[0].mac]
    assert room_of(known) == room


# --- who is which rank --------------------------------------------------------------------------------------


def test_without_a_standing_roster_ranks_go_by_address_and_the_rest_are_spares() -> None:
    assert seat(SITE.ducks, 3, None) == (SITE.ducks[:3], SITE.ducks[3:])
    with pytest.raises(ValueError, match="4 ducks for 5 ranks"):
        seat(SITE.ducks, 5, None)


def test_a_duck_keeps_its_rank_and_a_spare_takes_the_place_of_one_that_is_gone() -> None:
    standing = make_roster(SITE, SITE.ducks[:3], SITE.ducks[3:], evidence(), 7, NOW)
    assert seat(SITE.ducks, 3, standing) == (SITE.ducks[:3], SITE.ducks[3:])
    a, b, c, d = SITE.ducks
    assert seat((b, c, d), 3, standing) == ((d, b, c), ())
    back = make_roster(SITE, (d, b, c), (), evidence(), 8, NOW)
    assert seat(SITE.ducks, 3, back) == ((d, b, c), (a,))  # it is no reason to move anything that one came back
    assert seat(SITE.ducks, 2, back) == ((a, b), (c, d))


@given(st.integers(1, 10), st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.data())
def test_only_ducks_of_new_ranks_move_anything(tp: int, spares: int, new: int, parts: int, data: st.DataObject) -> None:
    ducks = plan_lab("abcd", tp + spares + new).ducks
    site = Site("lab", Path("site.toml"), PLAN.domains, ducks, ())
    known = {duck.mac: evidence()[SITE.ducks[0].mac] for duck in ducks}
    shape = ModelShape("m", 64, (FfnShape(1024), FfnShape(128, 4, 64)))
    bare = cut(shape, tp, parts)

    def planned(holders: tuple[Duck, ...]) -> ShardPlan:
        return replicate(bare, [4 * max(held_bytes(bare))] * len(holders))

    first = data.draw(st.permutations(ducks[: tp + spares]))
    roster = make_roster(site, first[:tp], first[tp:], known, 1, NOW)
    lost = data.draw(st.sets(st.sampled_from(ducks), max_size=spares + new))
    ready = tuple(duck for duck in ducks if duck not in lost)
    ranks, others = seat(ready, tp, roster)
    assert sorted(duck.name for duck in (*ranks, *others)) == sorted(duck.name for duck in ready)
    before, after = planned(tuple(first)), planned((*ranks, *others))
    assert check(after, shape) == []
    moved = movement(before, [duck.name for duck in first], after, [duck.name for duck in (*ranks, *others)])
    holds = [sum(after.chunks[i].num_bytes for i in held) for held in after.holders]
    for rank, duck in enumerate(ranks):
        kept = first[rank] == duck and len(others) == spares
        assert moved[duck.name] <= (0 if kept else holds[rank])
    assert seat(ready, tp, make_roster(site, ranks, others, known, 2, NOW)) == (ranks, others)  # planning again


# --- how large a slice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gb_per_s", "expected"),
    [
        ((20, 20, 20, 20), None),
        ((20, 19, 21, 20.5), None),  # two measurements are never alike
        ((20, 20, 10, 20), (1.0, 1.0, 0.5, 1.0)),
        ((20, 20.4, 10.2, 19.7), (1.0, 1.0, 0.5, 1.0)),
        ((20, 20, 0, 20), None),  # it did not say
        ((0, 0, 0, 0), None),
        ((20, 20, 0.01, 20), (1.0, 1.0, 1 / 16, 1.0)),
    ],
)
def test_a_slow_duck_gets_a_smaller_slice(gb_per_s: tuple[float, ...], expected: tuple[float, ...] | None) -> None:
    known = evidence()
    for duck, speed in zip(SITE.ducks, gb_per_s, strict=True):
        facts = replace(FACTS, read_bandwidth_bytes_per_s=speed * 1e9)
        known[duck.mac] = replace(known[duck.mac], facts=facts)
    assert shares(SITE.ducks, known) == expected
