"""Positions of jobs in their sources, stored with their epochs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import table

revision = "0005"
down_revision = "0004"

_BODY = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    op.add_column(
        table("sink"),
        sa.Column("position", _BODY, comment="how far the job has read its source, in its own form"),
    )
