"""Restores of the database, the gaps in offsets that they leave, and sinks that went back."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from broker.storage.migrations.names import table

revision = "0014"
down_revision = "0013"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    op.create_table(
        table("restoration"),
        sa.Column("first_number", sa.BigInteger(), primary_key=True, autoincrement=False, comment="given since then"),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
        sa.Column("handled", sa.SmallInteger(), nullable=False, comment="0: a broker noticed it, nothing is done yet"),
        sa.Column("told_by", sa.String(255), nullable=False),
        **MYSQL,
    )
    op.create_table(
        table("offset_gap"),
        sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("first_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False, comment="messages go on here"),
        **MYSQL,
    )
    op.add_column(
        table("sink"),
        sa.Column(
            "went_back", sa.SmallInteger(), nullable=False, server_default="0", comment="1: the next epoch must follow"
        ),
    )
