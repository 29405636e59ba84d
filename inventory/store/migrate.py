"""Bring a store to this version's schema (Alembic), once, whoever comes first."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from duckfleet.inventory.store.connect import StoreError, mapped_errors, shown
from duckfleet.inventory.store.schema import HEAD_REVISION

_ADVISORY_LOCK = 0x6475636B  # "duck"


def migrate(engine: Engine, url: str) -> None:
    """Create or upgrade the schema. Raises `StoreError` for a store made by a newer version."""
    with mapped_errors(url):
        if _revision(engine) == HEAD_REVISION:
            return
        with _alone(engine) as connection:
            _upgrade(connection, url)


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A transaction in which nobody else migrates this store; all of the migration, or nothing, is kept."""
    if engine.dialect.name == "sqlite":
        database = engine.url.database
        assert database is not None
        with Path(database + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with engine.connect() as raw:
                connection = raw.execution_options(duckfleet_writes=True)
                with connection.begin():
                    yield connection
            Path(database).chmod(0o600)
        return
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        yield connection


def _upgrade(connection: Connection, url: str) -> None:
    from alembic import command  # imported when there is something to do: it takes a third of a second
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "duckfleet.inventory.store:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"store {shown(url)}: {error}; it was made by a newer duckfleet: use that one, or another --state"
        ) from error
