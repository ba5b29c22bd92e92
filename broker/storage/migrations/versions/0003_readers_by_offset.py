"""Groups whose unread messages retention spares."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column(
        "consumer_group",
        sa.Column("keep_unread", sa.SmallInteger(), nullable=False, server_default="0", comment="retention spares it"),
    )
    op.create_index("group_keeping", "consumer_group", ["keep_unread"])
