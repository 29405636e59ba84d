"""One lab of virtual ducks for all tests that boot: started once, taken down at the end whatever happened."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from duckfleet.fleet.vm import lab, network
from duckfleet.inventory.sitefile import load_site
from duckfleet.inventory.store import Store

STEP_TIMEOUT_S = 600


@dataclass
class VirtualLab:
    """A state directory with a lab in it, and `duckctl` as a person would call it."""

    state: Path
    site_dir: Path

    @property
    def folder(self) -> Path:
        return self.state / "lab"

    @property
    def namespace(self) -> str:
        return network.namespace_of(self.folder)

    def duckctl(self, *arguments: str, code: int | None = 0, timeout_s: float = STEP_TIMEOUT_S) -> str:
        """Run it, check its exit code, return what it printed."""
        command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(self.state), *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUCKFLEET_S")}
        done = subprocess.run(
            command, cwd=self.site_dir, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
        said = f"duckctl {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        assert code is None or done.returncode == code, f"exit code {done.returncode}: {said}\n{self.consoles()}"
        return done.stdout

    def consoles(self) -> str:
        """The last lines that each duck printed, and the lab's own logs."""
        parts = []
        for path in sorted([*self.folder.glob("*.console"), *self.folder.glob("*.log")]):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            parts.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(parts)

    def duck(self, name: str):
        duck = load_site(self.folder / "duckfleet.toml").find(name)
        assert duck is not None
        return duck

    def state_of(self, name: str) -> str:
        with closing(self._store()) as store:
            return store.ducks()[self.duck(name).mac].state

    def _store(self) -> Store:
        return Store(f"sqlite:///{self.state / 'fleet.db'}")

    def ports(self) -> dict[str, lab.PortState]:
        return {port.name: port for port in lab.ports(self.folder)}

    def events(self, name: str):
        """The log of one duck."""
        with closing(self._store()) as store:
            return store.events([self.duck(name).mac])

    def explain(self, name: str) -> dict:
        """What `duckctl explain` says of one duck."""
        return json.loads(self.duckctl("explain", name, "--json", code=None))

    def findings(self, name: str) -> dict[str, list[str]]:
        """Its findings, worst first: code -> causes, most likely first."""
        found = self.explain(name)["findings"]
        return {finding["code"]: [cause["code"] for cause in finding["causes"]] for finding in found}

    def inside(self, work):
        """Run `work` in a thread that stands where the ducks are."""

        def enter_and_work():
            with network.entered(self.namespace):
                return work()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(enter_and_work).result()


@pytest.fixture(scope="session")
def virtual_lab(tmp_path_factory):
    """Five virtual ducks, all off: duck1101, duck1103 and duck1105 have a BIOS, duck1102 and duck1104 UEFI."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespace, bridge and taps")
    root = tmp_path_factory.mktemp("vm")
    made = VirtualLab(root / "state", root)
    try:
        made.duckctl("lab", "up", "--vm", "--ducks", "5")
        yield made
    finally:
        made.duckctl("lab", "down", code=None)
