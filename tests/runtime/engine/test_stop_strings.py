"""Stop strings: the outcome depends on the text alone, and nothing of a stop string is ever shown."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from duckfleet.runtime.engine.stop_strings import StopScanner

# Few letters, so that prefixes of stop strings abound.
texts = st.text("ab é", max_size=40)
stop_lists = st.lists(st.text("ab é", min_size=1, max_size=6), max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Oracle: grow the text by one character; it ends at the longest stop string that it then ends with."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(texts, stop_lists, st.lists(st.integers(0, 40)))
@example("aab", ["aaab", "ab"], [1, 2])
@example("abbabbab", ["abbabba"], [3])
def test_outcome_is_that_of_the_whole_text(text: str, stops: list[str], places: list[int]) -> None:
    scanner = StopScanner(stops)
    shown, found = "", None
    for piece in cut(text, places):
        scanned = scanner.push(piece)
        shown += scanned.text
        found = found or scanned.stop
    if found is None:
        shown += scanner.flush()
    assert (shown, found) == first_stop(text, stops)


@given(texts, stop_lists, st.lists(st.integers(0, 40)), texts)
def test_nothing_shown_is_ever_part_of_a_stop(text: str, stops: list[str], places: list[int], future: str) -> None:
    """Whatever the future brings, what is shown is a prefix of what may be shown, and no more is held than needed."""
    scanner = StopScanner(stops)
    shown, seen = "", ""
    for piece in cut(text, places):
        scanned = scanner.push(piece)
        seen += piece
        shown += scanned.text
        allowed, _ = first_stop(seen + future, stops)
        assert allowed.startswith(shown)
        if scanned.stop is not None:
            return
        held = seen[len(shown) :]
        assert len(held) == scanner.held_len
        assert held == "" or any(stop.startswith(held) for stop in stops), "held back without need"


def test_after_a_stop_nothing_comes() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("one E").text == "one "
    assert scanner.push("ND two").stop == "END"
    assert scanner.push("three").text == ""
    assert scanner.flush() == ""
