"""The lifecycle's table: what is listed, what must not be, and that no duck is stuck."""

import pytest

from duckfleet.fleet import lifecycle
from duckfleet.fleet.lifecycle import ANSWERING, EVENTS, SILENT, STARTING, STATES, TABLE, TIMEOUT_S

GOLDEN = """\
answered      degraded>degraded dhcp>up healthy>healthy loading>up lost>up off>up placed>placed probing>probing quarantined>quarantined serving>serving unknown>up up>up waking>up
dhcp_seen     degraded>dhcp dhcp>dhcp healthy>dhcp loading>dhcp lost>dhcp off>dhcp placed>dhcp probing>dhcp quarantined>quarantined serving>dhcp unknown>dhcp up>dhcp waking>dhcp
image_sent    dhcp>loading loading>loading lost>loading off>loading quarantined>quarantined unknown>loading waking>loading
placed        degraded>placed healthy>placed placed>placed
power_cut     degraded>off dhcp>off healthy>off loading>off lost>off off>off placed>off probing>off quarantined>quarantined serving>off unknown>off up>off waking>off
probe_degraded probing>degraded
probe_passed  probing>healthy
probe_started degraded>probing healthy>probing placed>probing probing>probing up>probing
probe_unknown probing>up
quarantined   degraded>quarantined dhcp>quarantined healthy>quarantined loading>quarantined lost>quarantined off>quarantined placed>quarantined probing>quarantined quarantined>quarantined serving>quarantined unknown>quarantined up>quarantined waking>quarantined
reboot_sent   degraded>waking dhcp>waking healthy>waking loading>waking lost>waking off>waking placed>waking probing>waking quarantined>quarantined serving>waking unknown>waking up>waking waking>waking
rejoined      degraded>serving dhcp>serving healthy>serving loading>serving lost>serving off>serving placed>serving probing>serving serving>serving unknown>serving up>serving waking>serving
released      quarantined>unknown
serve_ended   serving>placed
serve_started degraded>serving healthy>serving placed>serving serving>serving
timed_out     dhcp>lost loading>lost probing>up serving>placed waking>lost
wake_sent     dhcp>waking loading>waking lost>waking off>waking quarantined>quarantined unknown>waking waking>waking
went_silent   degraded>lost dhcp>lost healthy>lost loading>lost lost>lost placed>lost probing>lost quarantined>quarantined serving>lost up>lost waking>lost
"""  # noqa: E501


def test_the_table_is_what_was_reviewed() -> None:
    lines = []
    for event in EVENTS:
        moves = sorted(f"{state}>{target}" for (state, listed), target in TABLE.items() if listed == event)
        lines.append(f"{event:<13} {' '.join(moves)}\n")
    assert "".join(lines) == GOLDEN


def test_the_states_are_the_designs_and_each_has_a_time_out_or_says_it_has_none() -> None:
    wanted = "unknown off waking dhcp loading up probing healthy degraded quarantined placed serving lost"
    assert tuple(wanted.split()) == STATES
    assert set(TIMEOUT_S) == set(STATES)
    assert {*STARTING, *ANSWERING, *SILENT, "quarantined"} == set(STATES)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", [*EVENTS, "no_such_event"])
def test_what_is_not_listed_raises_with_state_and_event(state: str, event: str) -> None:
    if (state, event) in TABLE:
        assert lifecycle.next_state(state, event) in STATES
        assert lifecycle.is_listed(state, event)
        return
    assert not lifecycle.is_listed(state, event)
    with pytest.raises(lifecycle.UnlistedTransition, match=f"{state!r}.*{event!r}"):
        lifecycle.next_state(state, event)


def test_every_state_with_a_limit_can_time_out_and_no_other() -> None:
    for state in STATES:
        assert ((state, "timed_out") in TABLE) == (TIMEOUT_S[state] is not None), state


def test_serving_is_within_reach_of_every_state() -> None:
    reach = {"serving"}
    while True:
        more = {state for (state, _event), target in TABLE.items() if target in reach} - reach
        if not more:
            break
        reach |= more
    assert reach == set(STATES)


def test_only_release_leads_out_of_quarantine() -> None:
    ways_out = {event for (state, event), target in TABLE.items() if state == "quarantined" and target != "quarantined"}
    assert ways_out == {"released"}


def test_overdue_is_past_the_limit_and_never_without_one() -> None:
    assert not lifecycle.is_overdue("waking", 100.0, 220.0)
    assert lifecycle.is_overdue("waking", 100.0, 220.1)
    assert not lifecycle.is_overdue("off", 0.0, 1e12)
