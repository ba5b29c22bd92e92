"""Galera: the node of the cluster that brokers write to."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from broker.storage.migrations.names import table

revision = "0013"
down_revision = "0012"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    op.create_table(
        table("cluster_writer"),
        sa.Column(
            "slot", sa.SmallInteger(), primary_key=True, autoincrement=False, comment="of a session; 0: of reports"
        ),
        sa.Column("node", sa.String(255), nullable=False, comment="Galera: the node that brokers write to"),
        sa.Column("uses", sa.BigInteger(), nullable=False, comment="transactions, reports"),
        **MYSQL,
    )
