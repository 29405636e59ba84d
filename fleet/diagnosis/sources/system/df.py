"""`df -B1`, and `df -i` where it was taken: how full the file systems are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

FULL_SHARE = 0.01  # less than this left is full, unless it is still a lot
ROOM_BYTES = 2 << 30


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
    found, counts = [], ""
    for line in text.splitlines():
        if line.startswith("Filesystem"):
            counts = "inodes" if "Inodes" in line else "bytes"
            continue
        row = re.match(r"(\S+)\s+([0-9]{1,18})\s+([0-9]{1,18})\s+([0-9]{1,18})\s+(?:[0-9]+%|-)\s+(/.*?)\s*$", line)
        if row and counts:
            found.append(FileSystem(row[5], int(row[2]), int(row[4]), counts))
    if not found:
        raise not_an_answer(text)
    return FileSystems(tuple(found))
