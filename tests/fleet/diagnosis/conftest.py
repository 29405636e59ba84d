"""The site and store of `reports`, empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from duckfleet.inventory.site import Site
from duckfleet.inventory.sitefile import load_site
from duckfleet.inventory.store import Store
from tests.fleet.diagnosis.reports import NUM_DUCKS, SITE, mac


@pytest.fixture
def site(tmp_path: Path) -> Site:
    path = tmp_path / "duckfleet.toml"
    ducks = "".join(
        f'\n[[ducks]]\nmac = "{mac(i)}"\naddress = "10.21.1.{100 + i}"\nname = "d1-{100 + i}"\nrack = "A{i}"\n'
        for i in range(1, NUM_DUCKS + 1)
    )
    path.write_text(SITE + ducks)
    return load_site(path)


@pytest.fixture
def store(tmp_path: Path, site: Site) -> Store:
    store = Store(f"sqlite:///{tmp_path / 'fleet.db'}")
    store.know(site.ducks)
    return store
