"""Who gets which chunk from whom: each chunk once from the host, nobody waits in a circle, the work is spread."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.fleet.transfers import Link, Needs, Source, Transfer, domains_with_peers, schedule

EVERYWHERE = frozenset({"a", "b"})


def test_the_host_sends_everything_where_there_are_no_peers() -> None:
    ducks = [Needs("a", {"x": 3, "y": 4}), Needs("a", {"x": 3}, {"y"})]
    assert schedule(ducks, frozenset()) == ((Transfer("x", 3), Transfer("y", 4)), (Transfer("x", 3),))


def test_the_host_sends_each_chunk_once_and_not_what_a_duck_holds() -> None:
    ducks = [Needs("a", {"x": 3, "y": 4}), Needs("a", {"x": 3, "z": 2}), Needs("a", {}, {"y"})]
    assert schedule(ducks, EVERYWHERE) == (
        (Transfer("x", 3), Transfer("y", 4, 2)),
        (Transfer("z", 2), Transfer("x", 3, 0)),
        (),
    )


def test_other_domains_are_not_peers_but_for_what_is_not_here() -> None:
    ducks = [Needs("a", {"x": 3}), Needs("b", {}, {"x"})]
    assert schedule(ducks, EVERYWHERE) == ((Transfer("x", 3),), ())
    assert schedule(ducks, frozenset(), {"x"}) == ((Transfer("x", 3, 1),), ())


def test_what_nobody_has_is_left_to_the_host_to_explain() -> None:
    assert schedule([Needs("a", {"x": 3})], EVERYWHERE, {"x"}) == ((Transfer("x", 3),),)


def test_four_ducks_that_all_need_the_same_share_the_sending() -> None:
    """As many replicas as ducks: each takes a quarter from the host and gives it to the three others."""
    chunks = {f"{i:02}": 10 for i in range(16)}
    plan = schedule([Needs("a", chunks) for _ in range(4)], EVERYWHERE)
    for transfers in plan:
        givers = Counter(transfer.giver for transfer in transfers)
        assert givers[None] == 4 and sum(givers.values()) == 16
    given = Counter(transfer.giver for transfers in plan for transfer in transfers)
    assert given == {None: 16, 0: 12, 1: 12, 2: 12, 3: 12}


@st.composite
def fleets(draw: st.DrawFn) -> list[Needs]:
    sizes = {digest: draw(st.integers(1, 9)) for digest in "pqrstuvw"}
    ducks = []
    for _ in range(draw(st.integers(1, 6))):
        wanted = draw(st.lists(st.sampled_from(sorted(sizes)), unique=True))
        held = draw(st.sets(st.sampled_from(wanted))) if wanted else set()
        ducks.append(Needs(draw(st.sampled_from("ab")), {d: sizes[d] for d in wanted if d not in held}, held))
    return ducks


@given(fleets(), st.sets(st.sampled_from("ab")), st.sets(st.sampled_from("pqrstuvw")))
def test_any_fleet(ducks: list[Needs], with_peers: set[str], not_here: set[str]) -> None:
    plan = schedule(ducks, with_peers, not_here)
    assert plan == schedule(ducks, with_peers, not_here)
    from_host: Counter[tuple[str, str]] = Counter()
    for place, (duck, transfers) in enumerate(zip(ducks, plan, strict=True)):
        assert sorted(t.digest for t in transfers) == sorted(duck.lacking)
        of_host = [t for t in transfers if t.giver is None]
        assert list(transfers[: len(of_host)]) == of_host  # these come first
        for transfer in transfers:
            assert transfer.num_bytes == duck.lacking[transfer.digest]
            if transfer.giver is None:
                from_host[duck.domain, transfer.digest] += 1
                continue
            giver = ducks[transfer.giver]
            assert transfer.giver != place
            gets_it = Transfer(transfer.digest, transfer.num_bytes) in plan[transfer.giver]
            assert transfer.digest in giver.held or gets_it  # from the host: nobody waits for somebody who waits
            assert duck.domain == giver.domain or transfer.digest in not_here
            assert duck.domain in with_peers or transfer.digest in not_here
    for (domain, digest), times in from_host.items():
        held = any(duck.domain == domain and digest in duck.held for duck in ducks)
        assert domain not in with_peers or (times == 1 and not held)


@pytest.mark.parametrize(
    ("link", "narrow"),
    [
        (Link("a", 2500, (2500,) * 8), True),  # a host with one port of the ducks' kind
        (Link("a", 25000, (2500,) * 8), False),  # the reference: 25 GbE for eight ducks
        (Link("a", 1000, (2500,)), False),  # one duck has nobody to fetch from
        (Link("a", 0, (2500,) * 8), False),  # not known: nothing is concluded
        (Link("a", 2500, (2500, 0)), False),
    ],
)
def test_auto_goes_by_the_links(link: Link, narrow: bool) -> None:
    assert domains_with_peers(Source.AUTO, [link]) == ({"a"} if narrow else set())
    assert domains_with_peers(Source.PEERS, [link]) == {"a"}
    assert domains_with_peers(Source.HOST, [link]) == set()
