"""A state has a beginning and a last confirmation: renewing a state no longer hides for how long it has lasted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("ducks", sa.Column("confirmed_s", sa.Float, nullable=False, server_default="0"))
    op.execute("UPDATE ducks SET confirmed_s = since_s")


def downgrade() -> None:
    op.drop_column("ducks", "confirmed_s")
