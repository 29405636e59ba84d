"""Python's dataclasses are held against what the daemon prints of wire.hpp."""

from __future__ import annotations

import subprocess

from duckfleet.runtime.control import duckd_path
from duckfleet.runtime.wire import ALL_MESSAGES


def printed_layout() -> dict[str, tuple[int, list[tuple[str, int, int]]]]:
    text = subprocess.run([str(duckd_path()), "--layout"], check=True, capture_output=True, text=True).stdout
    structs: dict[str, tuple[int, list[tuple[str, int, int]]]] = {}
    for line in text.splitlines():
        words = line.split()
        if words[0] == "struct":
            fields: list[tuple[str, int, int]] = []
            structs[words[1]] = (int(words[2]), fields)
        else:
            fields.append((words[0], int(words[1]), int(words[2])))
    return structs


def test_every_struct_has_its_dataclass() -> None:
    ours = {m.__name__: (m.num_bytes(), [tuple(f) for f in m.layout()]) for m in ALL_MESSAGES}
    assert ours == printed_layout()
