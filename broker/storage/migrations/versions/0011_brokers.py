"""What brokers report of themselves and of their clients."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import table

revision = "0011"
down_revision = "0010"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Body = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        table("broker"),
        sa.Column("broker_id", sa.String(255), primary_key=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("endpoint", sa.String(255), nullable=False),
        sa.Column("version", sa.String(255), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False, comment="when it last reported"),
        sa.Column("producers", sa.Integer(), nullable=False),
        sa.Column("consumers", sa.Integer(), nullable=False),
        sa.Column("clients", Body, nullable=False, comment="JSON list, packed by zlib"),
        **MYSQL,
    )
