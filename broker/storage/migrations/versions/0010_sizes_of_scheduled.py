"""How many bytes are scheduled for a topic, from an index alone."""

from alembic import op

from broker.storage.migrations.names import index, table

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_index(index("scheduled_size"), table("scheduled_message"), ["topic_id", "size"])
