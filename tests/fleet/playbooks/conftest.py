"""A fleet of one Debian box behind a real ssh server, and duckctl on its host; made once for the tests of a module."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.trust import make_keys
from duckfleet.inventory.sitefile import load_site
from duckfleet.inventory.store import Store
from duckfleet.inventory.store.records import Event
from tests.fleet.network import Network, network
from tests.fleet.playbooks.debian_box import Box, Plan, debian_duck, pin_key, site_file

RUN_TIMEOUT_S = 240


@dataclass(frozen=True)
class Shelf:
    """A host, its state directory, and its duck "ann"."""

    net: Network
    state: Path
    box: Box
    site: Path

    def command(self, *arguments: str) -> list[str]:
        duckctl = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(self.state), "--site", str(self.site)]
        return [*duckctl, *arguments]

    def duckctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.net.on_host(*self.command(*arguments), timeout=RUN_TIMEOUT_S)

    def run(self, playbook: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """(exit code, the run's record)."""
        done = self.duckctl("playbook", "run", playbook, *arguments, "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def events(self, kind: str) -> list[Event]:
        store = Store(f"sqlite:///{self.state / 'fleet.db'}")
        try:
            return [event for event in store.events() if event.kind == kind]
        finally:
            store.close()

    @property
    def mac(self) -> str:
        return load_site(self.site).ducks[0].mac


MakeShelf = Callable[..., AbstractContextManager[Shelf]]


@pytest.fixture(scope="module")
def make_shelf(tmp_path_factory: pytest.TempPathFactory) -> MakeShelf:
    """Make a shelf; its box's host key is pinned unless `is_known` says no."""

    @contextmanager
    def make(plan: Plan | None = None, *, is_known: bool = True) -> Iterator[Shelf]:
        state = tmp_path_factory.mktemp("state")
        make_keys(state / "keys")
        with network(1) as net, debian_duck(net, state, state / "box", plan) as box:
            if is_known:
                pin_key(state, state / "box")
            yield Shelf(net, state, box, site_file(net, state))

    return make
