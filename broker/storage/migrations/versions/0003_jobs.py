"""For jobs: groups whose unread messages are kept by retention, and sinks."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import index, table

revision = "0003"
down_revision = "0002"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Id = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column(
            table("op_record"),
            "source",
            existing_type=sa.SmallInteger(),
            existing_nullable=False,
            comment="1 producer, 2 check, 3 operator, 4 send, 5 sink",
        )
    op.add_column(
        table("consumer_group"),
        sa.Column("keep_unread", sa.SmallInteger(), nullable=False, server_default="0", comment="retention spares it"),
    )
    op.create_index(index("group_keeping"), table("consumer_group"), ["keep_unread"])
    op.create_table(
        table("sink"),
        sa.Column("sink_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("query_id", sa.String(100), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False, comment="grows when another query takes it over"),
        sa.Column("committed_epoch", sa.BigInteger()),
        sa.Column("committed_at", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("name", name="sink_name"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_table(
        table("sink_transaction"),
        sa.Column("transaction_id", Id, primary_key=True),
        sa.Column("sink_id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", Id, nullable=False),
        sa.Column("half_count", sa.Integer(), nullable=False),
        sa.Column("prepared_at", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
    op.create_index(index("sink_epoch"), table("sink_transaction"), ["sink_id", "generation", "epoch"])
    op.create_index(index("sink_prepared"), table("sink_transaction"), ["prepared_at"])
