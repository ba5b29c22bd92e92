"""Groups in which RocketMQ's push consumers keep the order of messages themselves."""

import sqlalchemy as sa
from alembic import op

from broker.storage.migrations.names import table

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column(
        table("consumer_group"),
        sa.Column(
            "fifo", sa.SmallInteger(), nullable=False, server_default="0", comment="RocketMQ clients keep its order"
        ),
    )
