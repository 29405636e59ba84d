"""Wrapping of text that arrives in pieces."""

from __future__ import annotations

import textwrap

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from duckfleet.runtime.word_wrap import WordWrap


def wrapped(pieces: list[str], width: int) -> str:
    wrap = WordWrap(width)
    return "".join(wrap.feed(piece) for piece in pieces) + wrap.flush()


def test_a_word_that_comes_in_two_pieces_is_not_broken() -> None:
    assert wrapped(["The capital of Fra", "nce is ", "Paris."], 16) == "The capital of\nFrance is Paris."


def test_lines_and_indentation_are_kept() -> None:
    text = "def f():\n    return  1\n\n  * a\n"
    assert wrapped(list(text), 40) == text


def test_a_word_is_shown_once_it_has_ended() -> None:
    wrap = WordWrap(20)
    assert wrap.feed("Par") == ""
    assert wrap.feed("is ") == "Paris"
    assert wrap.flush() == ""


def test_wide_characters_count_two_cells() -> None:
    assert wrapped(["鴨鴨 鴨鴨"], 8) == "鴨鴨\n鴨鴨"


WORDS = st.lists(st.text("abcé鴨", min_size=1, max_size=12), min_size=1, max_size=30)


@given(WORDS, st.integers(min_value=1, max_value=30), st.integers(min_value=1, max_value=7))
def test_as_the_standard_library_wraps_a_whole_text(words: list[str], width: int, step: int) -> None:
    narrow = [word.replace("鴨", "x") for word in words]
    text = " ".join(narrow)
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    assert wrapped(pieces, width) == "\n".join(
        textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    )


@given(WORDS, st.integers(min_value=24, max_value=60))
def test_no_line_is_wider_than_the_screen_and_no_word_is_lost(words: list[str], width: int) -> None:
    shown = wrapped([" ".join(words)], width)
    assert all(cell_len(line) <= width for line in shown.split("\n"))
    assert shown.split() == words
