"""Stop strings over a stream of text: nothing of one is ever shown, whatever the pieces are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scanned:
    """What may be shown after a piece of text, and the stop string that was completed by it."""

    text: str
    stop: str | None = None


class StopScanner:
    """Holds back the longest suffix of the text that may still become a stop string.

    The text ends before the stop string that is complete first; of those complete at the same character, the longest.
    So the outcome depends on the text alone, not on where it was cut into pieces. One Knuth-Morris-Pratt automaton
    a string: the work is proportional to the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)  # characters of each stop that end the text
        self._held = ""
        self._ended = False

    @property
    def held_len(self) -> int:
        """Characters that are kept back."""
        return len(self._held)

    def push(self, piece: str) -> Scanned:
        """Take the next piece; after a stop was found nothing more comes."""
        if self._ended:
            return Scanned("")
        if not self._stops:
            return Scanned(piece)
        text = self._held + piece
        start = len(self._held)
        for end, char in enumerate(piece, start + 1):
            for i, stop in enumerate(self._stops):
                self._matched[i] = _advance(stop, self._borders[i], self._matched[i], char)
                if self._matched[i] == len(stop):
                    self._ended, self._held = True, ""
                    return Scanned(text[: end - len(stop)], stop)
        held_len = max(self._matched)
        self._held = text[len(text) - held_len :]
        return Scanned(text[: len(text) - held_len])

    def flush(self) -> str:
        """The text is over: what was held back is no stop string."""
        held, self._held, self._ended = self._held, "", True
        return held


def _borders(word: str) -> list[int]:
    """For each i the longest proper prefix of word[:i] that is its suffix too (Knuth, Morris, Pratt 1977)."""
    borders = [0] * (len(word) + 1)
    matched = 0
    for i in range(1, len(word)):
        while matched and word[i] != word[matched]:
            matched = borders[matched]
        matched += word[i] == word[matched]
        borders[i + 1] = matched
    return borders


def _advance(word: str, borders: list[int], matched: int, char: str) -> int:
    while matched and word[matched] != char:
        matched = borders[matched]
    return matched + (word[matched] == char)
