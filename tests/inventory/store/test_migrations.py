"""The migrations make the schema that the code reads and writes, once, and a newer store is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa

from duckfleet.inventory.store import Store, StoreError
from duckfleet.inventory.store.connect import make_engine
from duckfleet.inventory.store.schema import HEAD_REVISION, metadata


def test_migrating_makes_exactly_the_schema(url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    Store(url).close()
    engine = make_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == HEAD_REVISION
    engine.dispose()


def test_there_is_one_head_and_the_code_names_it() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "duckfleet.inventory.store:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD_REVISION]


def test_a_store_of_a_newer_version_is_refused(url: str) -> None:
    Store(url).close()
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match="newer duckfleet"):
        Store(url)


OPEN = "import sys; from duckfleet.inventory.store import Store; print(Store(sys.argv[1]).next_generation())"


def test_four_processes_that_open_a_new_store_at_once_all_succeed(url: str) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", OPEN, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outcomes = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0] * 4, [err for _, err in outcomes]
    assert sorted(int(out) for out, _ in outcomes) == list(range(1, 5))
