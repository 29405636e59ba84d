"""Tables of the store. A change here needs a migration beside it; a test compares the two."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

HEAD_REVISION = "0002"

metadata = MetaData()

ducks = Table(
    "ducks",
    metadata,
    Column("mac", String(17), primary_key=True),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("since_s", Float, nullable=False),
    Column("confirmed_s", Float, nullable=False, server_default="0"),
    Column("evidence", JSON, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at_s", Float, nullable=False),
    Column("mac", String(17), nullable=False),
    Column("duck", Text, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("from_state", String(16), nullable=False),
    Column("to_state", String(16), nullable=False),
    Column("evidence", JSON, nullable=False),
    Column("actor", Text, nullable=False),
    Index("events_by_duck", "mac", "id"),
    sqlite_autoincrement=True,
)

probe_runs = Table(
    "probe_runs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("mac", String(17), nullable=False),
    Column("started_at_s", Float, nullable=False),
    Column("finished_at_s", Float, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("report", JSON, nullable=False),
    Column("error", Text, nullable=False),
    Index("probe_runs_by_duck", "mac", "id"),
    sqlite_autoincrement=True,
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("mac", String(17), nullable=False),
    Column("at_s", Float, nullable=False),
    Column("name", String(64), nullable=False),
    Column("value", Float, nullable=False),
    Column("unit", String(16), nullable=False),
    Column("probe_run_id", Integer),
    Index("measurements_by_duck", "mac", "name", "at_s"),
)

holds = Table(
    "holds",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("mac", String(17), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("placed_by", Text, nullable=False),
    Column("placed_at_s", Float, nullable=False),
    Column("lifted_by", Text, nullable=False),
    Column("lifted_at_s", Float),
    Index("holds_by_duck", "mac", "lifted_at_s"),
)

placements = Table(
    "placements",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at_s", Float, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("mac", String(17), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("num_chunks", Integer, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("moved_bytes", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Index("placements_by_duck", "mac", "id"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", Integer, nullable=False),
)
