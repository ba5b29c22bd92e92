"""Messages that applications write into the broker's database in transactions of their own."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import table

revision = "0006"
down_revision = "0005"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Id = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
Body = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
Text = sa.Text().with_variant(mysql.TEXT(), "mysql", "mariadb")
Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _submitted() -> list[sa.Column[Any]]:
    return [
        sa.Column("message_id", Id, comment="its identity; none: the broker generates one"),
        sa.Column("topic_name", sa.String(127), nullable=False),
        sa.Column("body", Body, nullable=False),
        sa.Column("tag", Text),
        sa.Column("message_keys", Text, comment="JSON list"),
        sa.Column("message_group", sa.String(64)),
        sa.Column("properties", Text, comment="JSON object"),
        sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("deliver_at", sa.BigInteger(), comment="earliest delivery"),
        sa.Column("delay", sa.BigInteger(), comment="instead: time from its release on, in microseconds"),
        sa.Column("deduplication_key", sa.String(255)),
    ]


def upgrade() -> None:
    op.create_table(
        table("submission"),
        sa.Column("submission_id", Counter, primary_key=True, autoincrement=True),
        *_submitted(),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_table(
        table("refused_submission"),
        sa.Column("submission_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        *_submitted(),
        sa.Column("refused_at", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.String(500), nullable=False),
        **MYSQL,
    )
