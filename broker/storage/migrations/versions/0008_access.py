"""Who may do what."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import table

revision = "0008"
down_revision = "0007"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Text = sa.Text().with_variant(mysql.TEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        table("access_rule"),
        sa.Column("rule_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("subject", sa.String(255), nullable=False, comment="user:name, user:* or role:name"),
        sa.Column("kind", sa.String(16), nullable=False, comment="of the resource, or *"),
        sa.Column("pattern", sa.String(255), nullable=False, comment="of its name"),
        sa.Column("actions", sa.Integer(), nullable=False, comment="bits"),
        sa.Column("allow", sa.SmallInteger(), nullable=False, comment="0 denies"),
        sa.Column("sources", Text, comment="JSON list of networks; none: any"),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.String(255), nullable=False),
        sqlite_autoincrement=True,
        **MYSQL,
    )
