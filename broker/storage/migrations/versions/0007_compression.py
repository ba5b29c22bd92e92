"""Topics whose messages are stored compressed.

A broker of an earlier version does not start on these tables, so none can be added that would not read such messages.
Those that run already go on: no topic is compressed until its setting is changed.
"""

import sqlalchemy as sa
from alembic import op

from broker.storage.migrations.names import table

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column(
        table("topic"),
        sa.Column("compression", sa.SmallInteger(), nullable=False, server_default="1", comment="1 none, 2 zstd"),
    )
