"""Message groups, delay, priority, filters, deduplication, look-up by key, history, and group settings."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import index, statement, table

revision = "0002"
down_revision = "0001"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Id = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
Body = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
Bits = sa.LargeBinary(1024).with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
Text = sa.Text().with_variant(mysql.TEXT(), "mysql", "mariadb")
Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SUMMED_AT_ONCE = 100_000


def upgrade() -> None:
    _extend_tables()
    _fill()
    _create_tables()


def _numbered_for_good(name: str) -> AbstractContextManager[BatchOperations]:
    """Changes a table; SQLite then never reuses the number of a deleted row, like the servers."""
    embedded = op.get_bind().dialect.name == "sqlite"
    return op.batch_alter_table(
        name, recreate="always" if embedded else "never", table_kwargs={"sqlite_autoincrement": True}
    )


def _extend_tables() -> None:
    with _numbered_for_good(table("topic")) as topic:
        topic.add_column(
            sa.Column("retention_bytes", sa.BigInteger(), nullable=False, server_default="0", comment="0: no bound")
        )
        topic.add_column(
            sa.Column(
                "dedup_window", sa.BigInteger(), nullable=False, server_default="86400000000", comment="microseconds"
            )
        )
        topic.add_column(
            sa.Column(
                "group_queues", sa.Integer(), nullable=False, server_default="0", comment="queues of message groups"
            )
        )
        topic.add_column(sa.Column("deleted_at", sa.BigInteger(), comment="set while its messages are being deleted"))
    with _numbered_for_good(table("queue")) as queue:
        queue.add_column(
            sa.Column(
                "priority", sa.SmallInteger(), nullable=False, server_default="0", comment="of the messages in it"
            )
        )
        queue.add_column(
            sa.Column(
                "stored_bytes", sa.BigInteger(), nullable=False, server_default="0", comment="of the bodies in it"
            )
        )
        queue.add_column(sa.Column("deleted_at", sa.BigInteger(), comment="set while its messages are being deleted"))
    with op.batch_alter_table(table("half_message")) as half:
        half.add_column(sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="0"))
        half.add_column(sa.Column("deliver_at", sa.BigInteger(), comment="set when it is not to be delivered at once"))
        half.add_column(sa.Column("dedup_hash", Id, comment="of its dedup_key"))
    with op.batch_alter_table(table("op_record")) as op_record:
        op_record.add_column(sa.Column("parked_at", sa.BigInteger(), comment="when it last was parked"))
    with _numbered_for_good(table("consumer_group")) as group:
        group.alter_column("name", existing_type=sa.String(120), type_=sa.String(376), existing_nullable=False)
        group.add_column(sa.Column("retry_delays", Text, comment="JSON list of microseconds; none: the default"))
        group.add_column(
            sa.Column(
                "when_exhausted",
                sa.SmallInteger(),
                nullable=False,
                server_default="1",
                comment="1 dead letter, 2 retry",
            )
        )
        group.add_column(
            sa.Column(
                "mode", sa.SmallInteger(), nullable=False, server_default="1", comment="1 clustering, 2 broadcasting"
            )
        )
        group.add_column(
            sa.Column("start_at", sa.BigInteger(), comment="none: by the mode; 0 earliest, -1 latest, else a time")
        )
        group.add_column(sa.Column("paused_at", sa.BigInteger()))
        group.add_column(sa.Column("pause_reason", sa.String(500)))
        group.add_column(
            sa.Column("epoch", sa.Integer(), nullable=False, server_default="0", comment="grows with every change")
        )
        group.add_column(sa.Column("parent_id", sa.Integer(), comment="broadcasting group that this member belongs to"))
        group.add_column(sa.Column("seen_at", sa.BigInteger(), comment="when this member was here, to the hour"))
        group.create_index(index("group_members"), ["parent_id"])
    with _numbered_for_good(table("lease")) as lease:
        lease.add_column(
            sa.Column("message_group", sa.String(64), comment="all messages of the lease are of this group")
        )
        lease.drop_index(index("lease_queue"))
        lease.create_index(index("lease_queue"), ["group_id", "queue_id", "message_group", "first_offset"])


def _fill() -> None:
    op.execute(statement("UPDATE topic SET group_queues = queue_count"))
    bind = op.get_bind()
    for (queue_id,) in bind.execute(statement("SELECT queue_id FROM queue ORDER BY queue_id")).all():
        size = sum(_sizes(bind, queue_id))
        bind.execute(
            statement("UPDATE queue SET stored_bytes = :size WHERE queue_id = :queue_id"),
            {"size": size, "queue_id": queue_id},
        )


def _sizes(bind: sa.Connection, queue_id: int) -> Iterator[int]:
    """Bytes of a queue's bodies, by ranges: no statement takes long, and no lock is held while they are read."""
    of_queue = "FROM message WHERE queue_id = :queue_id"
    found = bind.execute(statement(f"SELECT MIN(log_offset), MAX(log_offset) {of_queue}"), {"queue_id": queue_id})
    first, last = found.one()
    for start in range(first or 0, last + 1 if last is not None else 0, SUMMED_AT_ONCE):
        bounds = {"queue_id": queue_id, "start": start, "end": start + SUMMED_AT_ONCE}
        part = bind.execute(
            statement(f"SELECT COALESCE(SUM(size), 0) {of_queue} AND log_offset >= :start AND log_offset < :end"),
            bounds,
        )
        yield int(part.scalar_one())


def _create_tables() -> None:
    op.create_table(
        table("scheduled_message"),
        sa.Column("deliver_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("transaction_id", Id, primary_key=True),
        sa.Column("position", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("queue_no", sa.Integer(), comment="set when a message group decides the queue"),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("body", Body, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("tag", sa.String(255)),
        sa.Column("message_keys", Text, comment="JSON list"),
        sa.Column("message_group", sa.String(64)),
        sa.Column("properties", Text, comment="JSON object"),
        sa.Column("born_at", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
    op.create_index(index("scheduled_id"), table("scheduled_message"), ["transaction_id", "position"])
    op.create_table(
        table("dedup_key"),
        sa.Column("topic_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("dedup_hash", Id, primary_key=True),
        sa.Column("transaction_id", Id, nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
    op.create_index(index("dedup_expires"), table("dedup_key"), ["expires_at"])
    op.create_table(
        table("message_key"),
        sa.Column("topic_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("key_hash", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("log_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        **MYSQL,
    )
    op.create_table(
        table("group_filter"),
        sa.Column("group_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("topic_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False, comment="1 tags, 2 SQL"),
        sa.Column("expression", Text, nullable=False),
        **MYSQL,
    )
    op.create_table(
        table("delivery_event"),
        sa.Column("event_id", Counter, primary_key=True, autoincrement=True),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("offsets", Bits, comment="bitmap, little endian; none: all"),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False, comment="as TimelineEventType"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(255)),
        sa.Column("happened_at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(500)),
        sa.Column("dead_letter", sa.BigInteger(), comment="offset of the first in the dead letter topic"),
        **MYSQL,
    )
    op.create_index(index("event_place"), table("delivery_event"), ["queue_id", "first_offset"])
    op.create_table(
        table("redriven"),
        sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("log_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("redriven_at", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
