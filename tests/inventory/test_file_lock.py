"""One process at a time, and a killed one lets go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duckfleet.inventory.file_lock import held_alone

HOLDER = """
import sys, time
from pathlib import Path
from duckfleet.inventory.file_lock import held_alone
with held_alone(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    time.sleep(600)
"""


class Busy(Exception):
    pass


def busy() -> None:
    raise Busy


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_at_a_time(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "folder":
        path.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy), held_alone(path, busy):
            raise AssertionError("two held it")
        told = []

        def end_the_other() -> None:
            told.append("held")
            holder.kill()

        with held_alone(path, end_the_other):
            assert told == ["held"]
    with held_alone(path, busy):
        pass
