"""Where a run of duckctl finds its things: state directory, site file, store, keys."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.site import Site
from duckfleet.inventory.sitefile import load_site

if TYPE_CHECKING:
    from duckfleet.inventory.store import Store
    from duckfleet.runtime.wire import FleetKeys

STATE_VARIABLE = "DUCKFLEET_STATE"
SITE_VARIABLE = "DUCKFLEET_SITE"
STORE_VARIABLE = "DUCKFLEET_STORE"
SITE_FILE = "duckfleet.toml"


def default_state_dir() -> Path:
    """`/var/lib/duckfleet` as root, `~/.local/state/duckfleet` (or under `$XDG_STATE_HOME`) otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/duckfleet")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "duckfleet"


@dataclass(frozen=True)
class FleetContext:
    """Paths are decided at once; everything else is opened when it is first asked for."""

    state_dir: Path
    site_option: Path | None = None
    no_auth: bool = False
    at_home: Callable[[], AbstractContextManager[None]] = nullcontext
    """Within it this thread is in the machine's own network, also where the ducks are a lab's with another."""

    @classmethod
    def of(cls, state: Path | None, site: Path | None, *, no_auth: bool = False) -> FleetContext:
        """From the options of the command line, then the environment, then the defaults."""
        chosen = state or os.environ.get(STATE_VARIABLE) or default_state_dir()
        option = site or (Path(os.environ[SITE_VARIABLE]) if os.environ.get(SITE_VARIABLE) else None)
        return cls(Path(chosen).expanduser().absolute(), option, no_auth)

    @property
    def keys_dir(self) -> Path:
        return self.state_dir / "keys"

    @property
    def models_dir(self) -> Path:
        return self.state_dir / "models"

    @property
    def chunks_dir(self) -> Path:
        return self.state_dir / "chunks"

    @property
    def rosters_dir(self) -> Path:
        return self.state_dir / "rosters"

    @property
    def lab_dir(self) -> Path:
        return self.state_dir / "lab"

    @cached_property
    def site_path(self) -> Path:
        """The site file: --site, $DUCKFLEET_SITE, else ./duckfleet.toml or the running lab's, whichever there is.

        Raises `OperatorError` when both are there: waking the wrong fleet is worse than asking.
        """
        if self.site_option is not None:
            return self.site_option
        here, lab = Path(SITE_FILE), self.lab_dir / SITE_FILE
        if here.exists() and lab.exists():
            raise OperatorError(
                f"a lab is up ({lab}) and there is ./{SITE_FILE}: say which with --site, or `duckctl lab down` first"
            )
        if here.exists() or lab.exists():
            return here if here.exists() else lab
        raise OperatorError(
            f"no site file: there is no ./{SITE_FILE}, no --site, no ${SITE_VARIABLE}, and no lab is up; "
            f"`duckctl init` writes one, `duckctl lab up` starts a fleet of processes to play with"
        )

    @cached_property
    def site(self) -> Site:
        return load_site(self.site_path)

    @cached_property
    def store(self) -> Store:
        from duckfleet.inventory.store import Store

        url = os.environ.get(STORE_VARIABLE)
        if url is None:
            self.make_state_dir()
            url = f"sqlite:///{self.state_dir / 'fleet.db'}"
        return Store(url)

    @cached_property
    def known_store(self) -> Store:
        """The store, with every duck of the site file entered."""
        self.store.know(self.site.ducks)
        return self.store

    @cached_property
    def keys(self) -> FleetKeys | None:
        """The fleet's keys; None with --no-auth. Raises `OperatorError` when there are none."""
        if self.no_auth:
            return None
        from duckfleet.runtime.wire import FleetKeys

        return FleetKeys.load(self.keys_dir)

    def make_state_dir(self) -> None:
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OperatorError(
                f"state directory {self.state_dir}: {error.strerror}; choose another with --state or ${STATE_VARIABLE}"
            ) from error
