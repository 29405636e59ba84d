"""Canonical JSON of records: one text for one value, and loud about what is not the record."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.inventory.codec import BadRecord, canonical_json, from_plain, to_plain
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry

_NUMBERS = st.integers(0, 1 << 40)
_FLOATS = st.floats(0, 1e12, allow_nan=False)
_ENTRIES = st.builds(
    RosterEntry,
    rank=_NUMBERS,
    duck=st.text(max_size=8),
    address=st.text(max_size=8),
    domain=st.text(max_size=8),
    control_port=_NUMBERS,
    data_port=_NUMBERS,
    ram_bytes=_NUMBERS,
    read_bandwidth_bytes_per_s=_FLOATS,
    num_threads=_NUMBERS,
    evidence_at_s=_FLOATS,
)
_DOMAINS = st.builds(RosterDomain, st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), _NUMBERS)
_ROSTERS = st.builds(
    Roster,
    _NUMBERS,
    _FLOATS,
    st.lists(_DOMAINS, max_size=3).map(tuple),
    st.lists(_ENTRIES, max_size=3).map(tuple),
    st.lists(_ENTRIES, max_size=2).map(tuple),
    st.text(max_size=8),
)


@given(_ROSTERS)
def test_a_record_survives_and_its_text_is_the_only_one(roster: Roster) -> None:
    text = canonical_json(roster)
    again = from_plain(Roster, json.loads(text))
    assert again == roster
    assert canonical_json(again) == text


ROSTER = Roster(1, 2.0, (), (), (), "ab")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"generation": "1"}, "Roster.generation must be int"),
        ({"generation": True}, "Roster.generation must be int"),
        ({"entries": {}}, "Roster.entries must be a list"),
        ({"entries": [1]}, r"Roster.entries\[0\] must be an object"),
        ({"extra": 1}, "Roster.extra is not a field"),
    ],
)
def test_a_value_of_another_shape_is_refused_by_field(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadRecord, match=complaint):
        from_plain(Roster, {**to_plain(ROSTER), **change})


def test_a_missing_field_is_refused() -> None:
    plain = to_plain(ROSTER)
    del plain["generation"]
    with pytest.raises(BadRecord, match="generation"):
        from_plain(Roster, plain)
