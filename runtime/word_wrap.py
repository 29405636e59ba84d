"""Text that arrives in pieces, wrapped between words for a terminal of some width. Pure."""

from __future__ import annotations

import re

from rich.cells import cell_len

_WORDS = re.compile(r"[^\S\n]+|\n|\S+")


class WordWrap:
    """Holds a word back until it has ended, for only then it is known whether it still fits into its line."""

    def __init__(self, width: int) -> None:
        """`width` in cells; a word that is longer than a line is left to the terminal to break."""
        self._width = width
        self._column = 0
        self._gap = self._word = ""

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        shown = ""
        for part in _WORDS.findall(piece):
            if part == "\n":
                shown += self._settle() + self._gap + "\n"
                self._gap, self._column = "", 0
            elif part.isspace():
                shown += self._settle()
                self._gap += part
            else:
                self._word += part
        return shown

    def flush(self) -> str:
        """The last word: nothing more comes."""
        return self._settle()

    def _settle(self) -> str:
        """The gap and the word after it, on a new line where they do not fit into this one."""
        if not self._word:
            return ""
        needed = cell_len(self._gap) + cell_len(self._word)
        if self._column and self._column + needed > self._width:
            text, self._column = "\n" + self._word, cell_len(self._word)
        else:
            text, self._column = self._gap + self._word, self._column + needed
        self._gap = self._word = ""
        return text
