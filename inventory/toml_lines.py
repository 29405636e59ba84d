"""On which line of a TOML text each key stands (`tomllib` does not say)."""

from __future__ import annotations

KeyPath = tuple[str | int, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """Lines (from 1) of every table header and of every key, by path; array tables count from 0.

    The text must have been accepted by `tomllib`. Keys inside inline tables and arrays are not listed: ask `line_of`,
    which falls back to the nearest listed ancestor.
    """
    return _Scanner(text).scan()


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """The line of `path`, or of its nearest ancestor that has one; 1 when there is none."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.table: KeyPath = ()
        self.counts: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n":
                self.at += 1
            elif char == "#":
                self._skip_line()
            elif char == "[":
                self._header()
            else:
                line = self._line()
                path: KeyPath = self.table
                for part in self._dotted_key():
                    path = (*path, part)
                    self.lines.setdefault(path, line)
                self.at += 1  # '='
                self._skip_value()
        return self.lines

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _header(self) -> None:
        line = self._line()
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        keys = self._dotted_key()
        self.at += 2 if is_array else 1
        path: KeyPath = ()
        for depth, key in enumerate(keys):
            path = (*path, key)
            last = depth == len(keys) - 1
            if is_array and last:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                self.lines.setdefault(path, line)
                path = (*path, self.counts[path])
        self.table = path
        self.lines.setdefault(path, line)

    def _dotted_key(self) -> list[str]:
        parts = []
        while True:
            self._skip_blanks()
            char = self.text[self.at]
            if char in "\"'":
                start = self.at
                self._skip_string()
                parts.append(self.text[start + 1 : self.at - 1])
            else:
                start = self.at
                while self.at < len(self.text) and self.text[self.at] not in " \t.=]":
                    self.at += 1
                parts.append(self.text[start : self.at])
            self._skip_blanks()
            if self.at >= len(self.text) or self.text[self.at] != ".":
                return parts
            self.at += 1

    def _skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def _skip_string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while self.at < len(self.text):
            if quote == '"' and self.text[self.at] == "\\":
                self.at += 2
            elif self.text.startswith(fence, self.at):
                self.at += len(fence)
                # A multi-line string may end in up to two quotes of its own before its fence.
                while len(fence) == 3 and self.text.startswith(quote, self.at):
                    self.at += 1
                return
            else:
                self.at += 1

    def _skip_value(self) -> None:
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\"'":
                self._skip_string()
                continue
            if char == "#":
                self._skip_line()
                continue
            if char in "[{":
                depth += 1
            elif char in "]}":
                depth -= 1
            elif char == "\n" and depth == 0:
                return
            self.at += 1
