"""MAC notations and the addresses no single machine can have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.inventory.mac import BadMac, mac_bytes, parse_mac

NOTATIONS = ["00:e0:4c:0a:0b:0c", "00-E0-4C-0A-0B-0C", "00e0.4c0a.0b0c", "00E04C0A0B0C", " 00:E0:4c:0a:0B:0c\n"]


@pytest.mark.parametrize("text", NOTATIONS)
def test_every_usual_notation_is_one_identity(text: str) -> None:
    assert parse_mac(text) == "00:e0:4c:0a:0b:0c"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("00:00:00:00:00:00", "all zero"),
        ("ff-ff-ff-ff-ff-ff", "broadcast"),
        ("01:00:5e:00:00:01", "multicast"),
        ("33:33:00:00:00:01", "multicast"),
        ("00:e0:4c:0a:0b", "six octets"),
        ("00:e0:4c:0a:0b:0c:0d", "six octets"),
        ("00:e0-4c:0a:0b:0c", "six octets"),
        ("00:e0:4c:0a:0b:0g", "six octets"),
        ("", "six octets"),
        ("10.21.1.101", "six octets"),
    ],
)
def test_addresses_that_are_no_identity_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadMac, match=reason):
        parse_mac(text)


@given(st.binary(min_size=6, max_size=6))
def test_a_mac_survives_every_notation(octets: bytes) -> None:
    if octets[0] & 1 or not any(octets):
        return
    plain = octets.hex()
    groups = [plain[i : i + 2] for i in range(0, 12, 2)]
    dotted = ".".join(plain[i : i + 4] for i in range(0, 12, 4))
    for text in (plain, ":".join(groups), "-".join(groups).upper(), dotted):
        assert mac_bytes(parse_mac(text)) == octets
