"""What tenants may use, and who did what."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import index, table

revision = "0009"
down_revision = "0008"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Text = sa.Text().with_variant(mysql.TEXT(), "mysql", "mariadb")
Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        table("tenant_quota"),
        sa.Column("tenant", sa.String(40), primary_key=True, comment="* for those without one"),
        sa.Column("messages_per_second", sa.BigInteger(), nullable=False, comment="0: no limit; so are the others"),
        sa.Column("bytes_per_second", sa.BigInteger(), nullable=False),
        sa.Column("topics", sa.BigInteger(), nullable=False),
        sa.Column("consumer_groups", sa.BigInteger(), nullable=False, comment="and those of producers"),
        sa.Column("retained_bytes", sa.BigInteger(), nullable=False),
        sa.Column("streams", sa.BigInteger(), nullable=False),
        sa.Column("pending", sa.BigInteger(), nullable=False, comment="transactions without a verdict"),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.Column("set_by", sa.String(255), nullable=False),
        **MYSQL,
    )

    op.create_table(
        table("audit_record"),
        sa.Column("audit_id", Counter, primary_key=True, autoincrement=True),
        sa.Column("happened_at", sa.BigInteger(), nullable=False),
        sa.Column("broker_id", sa.String(255), nullable=False),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("call_name", sa.String(100), nullable=False),
        sa.Column("action", sa.String(20), nullable=False),
        sa.Column("resource", sa.String(255), nullable=False),
        sa.Column("outcome", sa.SmallInteger(), nullable=False, comment="as AuditOutcome"),
        sa.Column("times", sa.BigInteger(), nullable=False, comment="equal refusals that were merged"),
        sa.Column("detail", Text, nullable=False),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index(index("audit_time"), table("audit_record"), ["happened_at"])
    op.create_index(index("audit_principal"), table("audit_record"), ["principal", "audit_id"])
