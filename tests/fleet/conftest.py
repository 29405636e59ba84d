"""A lab of process ducks, with the real duckd, in a state directory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.trust import make_keys
from duckfleet.runtime.control import duckd_path
from tests.fleet.network import Network, network

StartLab = Callable[..., FleetContext]


@pytest.fixture
def net() -> Iterator[Network]:
    """A segment in a namespace of its own; root only."""
    with network(1) as made:
        yield made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a fleet's keys."""
    make_keys(tmp_path / "keys")
    return tmp_path


@pytest.fixture
def start_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartLab]:
    """Start a lab and get its context; everything is taken down at the end."""
    started: list[Path] = []

    def start(num_ducks: int, **options: object) -> FleetContext:
        state = tmp_path_factory.mktemp("state")
        fleet = FleetContext(state)
        make_keys(fleet.keys_dir)
        plan = processes.find_free_ports(plan_lab(processes.new_lab_id(), num_ducks, **options))  # type: ignore[arg-type]
        daemon = processes.DaemonOptions(
            duckd_path(), fleet_key=fleet.keys_dir / "fleet.pub", enrolment=fleet.keys_dir / "enrolment.secret"
        )
        started.append(fleet.lab_dir)
        processes.lab_up(fleet.lab_dir, plan, daemon)
        return fleet

    yield start
    for folder in started:
        processes.lab_down(folder)
