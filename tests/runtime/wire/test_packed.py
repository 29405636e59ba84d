"""Packed structs: round trip, and what does not fit is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.runtime.wire import ALL_MESSAGES, DataHeader, IdentityReply, Packed, WireFormatError


@given(st.sampled_from(ALL_MESSAGES), st.data())
def test_bytes_round_trip(message: type[Packed], data: st.DataObject) -> None:
    """Any bytes of the right length are a struct; text fields lose only what follows a zero or is no UTF-8."""
    raw = data.draw(st.binary(min_size=message.num_bytes(), max_size=message.num_bytes()))
    value = message.unpack(raw)
    if message is not IdentityReply and message.__name__ != "Route":  # a float's NaN is not equal to itself
        assert value.pack() == raw
        assert message.unpack(value.pack()) == value


@given(st.sampled_from(ALL_MESSAGES), st.binary(max_size=400))
def test_any_other_length_is_refused(message: type[Packed], raw: bytes) -> None:
    if len(raw) != message.num_bytes():
        with pytest.raises(WireFormatError, match=message.__name__):
            message.unpack(raw)


def test_values_that_do_not_fit() -> None:
    with pytest.raises(WireFormatError, match="DataHeader"):
        DataHeader(step=1 << 32).pack()
    with pytest.raises(WireFormatError, match=r"DataHeader\.tag"):
        DataHeader(tag=b"short").pack()


def test_layouts_have_no_gaps() -> None:
    for message in ALL_MESSAGES:
        end = 0
        for field in message.layout():
            assert field.offset == end, f"{message.__name__}.{field.name}"
            end += field.size
        assert end == message.num_bytes()
