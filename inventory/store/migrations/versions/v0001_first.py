"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "ducks",
        sa.Column("mac", sa.String(17), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("domain", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("since_s", sa.Float, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("mac", sa.String(17), nullable=False),
        sa.Column("duck", sa.Text, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("from_state", sa.String(16), nullable=False),
        sa.Column("to_state", sa.String(16), nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_duck", "events", ["mac", "id"])
    op.create_table(
        "probe_runs",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("mac", sa.String(17), nullable=False),
        sa.Column("started_at_s", sa.Float, nullable=False),
        sa.Column("finished_at_s", sa.Float, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("report", sa.JSON, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("probe_runs_by_duck", "probe_runs", ["mac", "id"])
    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("mac", sa.String(17), nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("unit", sa.String(16), nullable=False),
        sa.Column("probe_run_id", sa.Integer),
    )
    op.create_index("measurements_by_duck", "measurements", ["mac", "name", "at_s"])
    op.create_table(
        "holds",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("mac", sa.String(17), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("placed_by", sa.Text, nullable=False),
        sa.Column("placed_at_s", sa.Float, nullable=False),
        sa.Column("lifted_by", sa.Text, nullable=False),
        sa.Column("lifted_at_s", sa.Float),
    )
    op.create_index("holds_by_duck", "holds", ["mac", "lifted_at_s"])
    op.create_table(
        "placements",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("mac", sa.String(17), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("num_chunks", sa.Integer, nullable=False),
        sa.Column("total_bytes", sa.BigInteger, nullable=False),
        sa.Column("moved_bytes", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
    )
    op.create_index("placements_by_duck", "placements", ["mac", "id"])
    op.create_table(
        "counters",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    for table in ("counters", "placements", "holds", "measurements", "probe_runs", "events", "ducks"):
        op.drop_table(table)
