"""docs/wire.md names what the code has: every struct field of a datagram, counter, error, option and bound."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from duckfleet.runtime.control import duckd_path
from duckfleet.runtime.wire import ControlType, DataHeader, ErrorCode
from duckfleet.runtime.wire.keys import ENROLMENT_FILE, PRIVATE_FILE, PUBLIC_FILE
from tests.runtime.duckd.duck_process import DuckProcess

TEXT = (Path(__file__).parents[3] / "docs" / "wire.md").read_text()


def test_datagram_header() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)`", TEXT, re.MULTILINE)[: len(DataHeader.layout())])
    assert rows == {str(field.offset): field.name for field in DataHeader.layout()}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_error_codes(code: ErrorCode) -> None:
    section = TEXT[TEXT.index("### Errors") : TEXT.index("### Bounds")]
    row = next(line for line in section.splitlines() if line.startswith("|") and f"`{code.name.lower()}`" in line)
    numbers = [int(n) for n in re.findall(r"\d+", row.split("|")[1])]
    names = re.findall(r"`(\w+)`", row.split("|")[2])
    assert dict(zip(names, numbers, strict=True))[code.name.lower()] == code


@pytest.mark.parametrize("kind", [k for k in ControlType if not k.name.endswith("REPLY")])
def test_control_types(kind: ControlType) -> None:
    name = kind.name.title().replace("_", "")
    assert re.search(rf"^\| (\d+, )?{int(kind)}(, \d+)? \| [\w, ]*\b{name}\b", TEXT, re.MULTILINE)


def test_counters(tmp_path: Path) -> None:
    with DuckProcess(tmp_path) as duck, duck.control() as control:
        stats = control.stats()
    names = {
        *stats,
        *stats["data"],
        *stats["control"],
        *stats["scrub"],
        *stats["data"]["drops"],
        *stats["data"]["compute"],
    }
    missing = {name for name in names if f"`{name}`" not in TEXT}
    assert not missing


def test_options() -> None:
    usage = subprocess.run([str(duckd_path()), "--help"], check=True, capture_output=True, text=True).stdout
    for option in set(re.findall(r"--[a-z-]+", usage)) - {"--probe", "--version", "--layout"}:
        assert option in TEXT


def test_key_files() -> None:
    for name in (PRIVATE_FILE, PUBLIC_FILE, ENROLMENT_FILE):
        assert f"`keys/{name}`" in TEXT
