"""Ranges against Python's own slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.pxe.byte_range import Unsatisfiable, parse_range

numbers = st.integers(0, 40)


@given(numbers, numbers, numbers)
def test_first_and_last(first, last, length):
    content = bytes(range(length))
    if last < first:
        assert parse_range(f"bytes={first}-{last}", length) is None
    elif first >= length:
        with pytest.raises(Unsatisfiable):
            parse_range(f"bytes={first}-{last}", length)
    else:
        begin, end = parse_range(f"bytes={first}-{last}", length)
        assert content[begin:end] == content[first : last + 1]


@given(numbers, numbers)
def test_open_and_suffix(number, length):
    content = bytes(range(length))
    if number < length:
        begin, end = parse_range(f"bytes={number}-", length)
        assert content[begin:end] == content[number:]
    if number and length:
        begin, end = parse_range(f"bytes=-{number}", length)
        assert content[begin:end] == content[-number:]


@given(st.text(max_size=30))
def test_anything_else_is_the_whole_file(text):
    try:
        found = parse_range(text, 10)
    except Unsatisfiable:
        return
    assert found is None or 0 <= found[0] < found[1] <= 10


@pytest.mark.parametrize("header", [None, "", "bytes", "bytes=", "bytes=-", "items=0-1", "bytes=0-1,3-4", "bytes=x-y"])
def test_headers_that_may_be_ignored_are(header):
    assert parse_range(header, 10) is None


@pytest.mark.parametrize(("header", "length"), [("bytes=-0", 10), ("bytes=10-", 10), ("bytes=0-", 0), ("bytes=-1", 0)])
def test_ranges_that_cannot_be(header, length):
    with pytest.raises(Unsatisfiable):
        parse_range(header, length)


def test_a_number_of_any_length_is_bounded():
    assert parse_range("bytes=" + "9" * 5000 + "-", 10) is None
