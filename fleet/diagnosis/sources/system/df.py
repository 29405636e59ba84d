"""`df` in bytes, blocks or human units, and `df -i` where it was taken: how full the file systems are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

FULL_SHARE = 0.01  # less than this left is full, unless it is still a lot
NEARLY_FULL_SHARE = 0.1
ROOM_BYTES = 2 << 30


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AMOUNT = r"[0-9]{1,18}(?:\.[0-9]{1,3})?[KMGT]?"
ROW = re.compile(
    rf"\S+\s+(?:[a-z]\w*\s+)?(?P<total>{_AMOUNT})\s+{_AMOUNT}\s+(?P<available>{_AMOUNT})\s+(?:[0-9]+%|-)"
    r"\s+(?P<mount>/.*?)\s*$"
)


@dataclass(frozen=True, slots=True)
class FileSystem:
    mount: str
    total: int  # bytes, or inodes
    available: int
    counts: str  # bytes or inodes

    @property
    def is_full(self) -> bool:
        if self.total <= 0 or (self.counts == "bytes" and self.available >= ROOM_BYTES):
            return False
        return self.available < FULL_SHARE * self.total

    @property
    def is_nearly_full(self) -> bool:
        """A large chunk may find no room where a small file still does."""
        return self.is_full or self.available < NEARLY_FULL_SHARE * self.total


@dataclass(frozen=True, slots=True)
class FileSystems:
    all: tuple[FileSystem, ...]

    def holding(self, path: str) -> tuple[FileSystem, ...]:
        """The file system that `path` lies on: the longest mount point above it; bytes and inodes."""
        above = [
            system for system in self.all if path == system.mount or path.startswith(system.mount.rstrip("/") + "/")
        ]
        longest = max((len(system.mount) for system in above), default=0)
        return tuple(system for system in above if len(system.mount) == longest)


def parse(text: str) -> FileSystems:
    """Raises `Unreadable` without a table."""
    found, counts, unit = [], "", 1
    for line in text.splitlines():
        if line.startswith("Filesystem"):
            counts = "inodes" if "Inodes" in line else "bytes"
            blocks = re.search(r"\b([0-9]{1,6})([KMG]?)-blocks", line)
            unit = int(blocks[1]) * UNITS[blocks[2]] if blocks else 1
            continue
        row = ROW.match(line)
        if row and counts:
            total, available = (_amount(row[index]) * unit for index in ("total", "available"))
            found.append(FileSystem(row["mount"], total, available, counts))
    if not found:
        raise not_an_answer(text)
    return FileSystems(tuple(found))


def _amount(text: str) -> int:
    """`60G`, `1.5T` or a plain number."""
    bare = text.rstrip("KMGT")
    return int(float(bare) * UNITS[text[len(bare) :]]) if len(bare) < len(text) else int(float(bare))
