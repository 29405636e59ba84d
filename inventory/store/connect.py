"""Engines for SQLite and PostgreSQL, their transactions, and foreign exceptions mapped to ours at one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from duckfleet.inventory.errors import OperatorError

BUSY_TIMEOUT_MS = 30_000


class StoreError(OperatorError):
    """The store cannot be opened, read or written; the message names it and what to do."""


def make_engine(url: str) -> Engine:
    """An engine whose write transactions exclude each other. Raises `StoreError` for a URL that is of no use."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend == "postgresql" and parsed.get_driver_name() == "psycopg2":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if backend not in ("sqlite", "postgresql"):
            raise StoreError(f"store {url!r}: use sqlite:///PATH or postgresql://USER@HOST/NAME")
        if backend == "postgresql":
            # A database of encoding SQL_ASCII would hand out bytes otherwise.
            engine = sa.create_engine(parsed, pool_pre_ping=True, connect_args={"client_encoding": "utf8"})
        else:
            engine = sa.create_engine(parsed)
    except (ArgumentError, NoSuchModuleError) as error:
        raise StoreError(f"store {url!r}: {error}; use sqlite:///PATH or postgresql://USER@HOST/NAME") from error
    except ModuleNotFoundError as error:
        raise StoreError(
            f"store {shown(url)}: needs the Python package {error.name!r} (pip install psycopg)"
        ) from error
    if backend == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def shown(url: str) -> str:
    """The URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN is deferred, which loses races for the write lock
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # an event that was reported survives a power cut


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("duckfleet_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def mapped_errors(url: str) -> Iterator[None]:
    """Every failure of the database, said as ours."""
    try:
        yield
    except DBAPIError as error:
        cause = " ".join(str(error.orig).split())
        raise StoreError(f"store {shown(url)}: {cause}{_advice(cause)}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"store {shown(url)}: {error}") from error


_DAMAGED = (
    "; the file is damaged: move it aside and bring back a copy, or go on without (its log and measurements are lost; "
    "`duckctl wake`, `probe` and `place` fill a new one)"
)


def _advice(cause: str) -> str:
    for sign, advice in (
        ("readonly", "; use a state directory you may write to (--state)"),
        ("unable to open", "; use a state directory you may write to (--state)"),
        ("disk is full", "; make room"),
        ("disk I/O error", "; make room there, or look at `dmesg` when there is"),
        ("malformed", _DAMAGED),
        ("not a database", _DAMAGED),
        ("locked", "; another program has held it for half a minute"),
        ("refused", "; is the PostgreSQL server running?"),
    ):
        if sign in cause:
            return advice
    return ""


@contextmanager
def write_transaction(engine: Engine, url: str) -> Iterator[Connection]:
    """A transaction that holds the write lock from its start (SQLite), or relies on row locks (PostgreSQL)."""
    with mapped_errors(url), engine.connect() as raw:
        connection = raw.execution_options(duckfleet_writes=True)
        with connection.begin():
            yield connection


@contextmanager
def read_transaction(engine: Engine, url: str) -> Iterator[Connection]:
    """One consistent view; never waits for writers."""
    with mapped_errors(url), engine.connect() as connection, connection.begin():
        yield connection
