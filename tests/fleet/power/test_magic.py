"""Magic packets: exact lengths whatever the notation, and found again the way a network card finds them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.fleet.power import magic
from duckfleet.inventory.mac import BadMac

NOTATIONS = ["00:e0:4c:0a:0b:0c", "00-E0-4C-0A-0B-0C", "00e0.4c0a.0b0c", "00E04C0A0B0C"]
WIRE = bytes.fromhex("ff" * 6 + "00e04c0a0b0c" * 16)


@pytest.mark.parametrize("mac", NOTATIONS)
@pytest.mark.parametrize("password", ["", "01:02:03:04:05:06", "0102.0304.0506", "010203040506", "01-02-03-04-05-06"])
def test_exactly_102_bytes_or_108_however_it_was_written(mac: str, password: str) -> None:
    payload = magic.build(mac, password)
    assert payload == WIRE + (bytes.fromhex("010203040506") if password else b"")
    assert len(payload) == (108 if password else 102)


@pytest.mark.parametrize("mac", ["ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "01:00:5e:00:00:01", "x"])
def test_no_packet_is_built_for_what_is_no_machine(mac: str) -> None:
    with pytest.raises(BadMac):
        magic.build(mac)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_packet_is_found_anywhere_in_a_payload(before: bytes, after: bytes) -> None:
    found = magic.find(before + WIRE + after)
    assert found is not None
    assert found[0] == "00:e0:4c:0a:0b:0c"


def test_the_password_is_found_with_it() -> None:
    assert magic.find(WIRE) == ("00:e0:4c:0a:0b:0c", "")
    assert magic.find(WIRE + bytes(range(1, 7))) == ("00:e0:4c:0a:0b:0c", "01:02:03:04:05:06")


@given(st.binary(max_size=300))
def test_noise_is_no_packet(noise: bytes) -> None:
    found = magic.find(noise)
    assert found is None or noise.find(b"\xff" * 6) >= 0


@pytest.mark.parametrize("spoilt", [WIRE[:-1], WIRE[:5] + WIRE[6:], WIRE[:50] + b"\0" + WIRE[51:], b"\xff" * 200])
def test_a_spoilt_packet_wakes_nobody(spoilt: bytes) -> None:
    assert magic.find(spoilt) is None
