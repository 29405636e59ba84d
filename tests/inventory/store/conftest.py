"""The store on each of its databases."""

from __future__ import annotations

import importlib.util
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckfleet.inventory.store import Store

_spec = importlib.util.spec_from_file_location("duckfleet_test_postgresql", Path(__file__).with_name("postgresql.py"))
assert _spec is not None
assert _spec.loader is not None
postgresql = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = postgresql
_spec.loader.exec_module(postgresql)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    if postgresql.binaries() is None:
        if os.geteuid() == 0:
            pytest.fail("PostgreSQL's server is not installed: apt install postgresql")
        pytest.skip("PostgreSQL's server is not installed (apt install postgresql)")
    with postgresql.server() as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """An empty database of its own."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgresql_server.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url, actor="tester")
    yield opened
    opened.close()
