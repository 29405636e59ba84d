"""What the soaks of duck and host share: options, memory, and a result line by line."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run_soak(arguments: list[str], description: str | None, soak: Callable[[Path, int, int, int], Any]) -> None:
    """Run `soak(folder, seed, datagrams, messages)` as the command line says and print its result, a dataclass."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--datagrams", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        result = soak(Path(directory), options.seed, options.datagrams, options.messages)
    for name, value in dataclasses.asdict(result).items():
        print(f"{name}: {value}")
