"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.names import index, table

revision = "0001"
down_revision = None

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
Id = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
Body = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
Bits = sa.LargeBinary(1024).with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
Text = sa.Text().with_variant(mysql.TEXT(), "mysql", "mariadb")
Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        table("topic"),
        sa.Column("topic_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(127), nullable=False),
        sa.Column("queue_count", sa.Integer(), nullable=False),
        sa.Column("retention", sa.BigInteger(), nullable=False, comment="microseconds"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("name", name="topic_name"),
        **MYSQL,
    )
    op.create_table(
        table("queue"),
        sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("queue_no", sa.Integer(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False, comment="offset of the next message released"),
        sa.Column("min_offset", sa.BigInteger(), nullable=False, comment="first offset that is kept"),
        sa.UniqueConstraint("topic_id", "queue_no", name="queue_of_topic"),
        **MYSQL,
    )
    op.create_table(
        table("producer_group"),
        sa.Column("producer_group_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.UniqueConstraint("name", name="producer_group_name"),
        **MYSQL,
    )
    op.create_table(
        table("half_message"),
        sa.Column("transaction_id", Id, primary_key=True),
        sa.Column("position", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("producer_group_id", sa.Integer(), nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("queue_no", sa.Integer(), comment="set when a message group decides the queue"),
        sa.Column("body", Body, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("tag", sa.String(255)),
        sa.Column("message_keys", Text, comment="JSON list"),
        sa.Column("message_group", sa.String(64)),
        sa.Column("properties", Text, comment="JSON object"),
        sa.Column("born_at", sa.BigInteger(), nullable=False),
        sa.Column(
            "check_state", sa.SmallInteger(), nullable=False, comment="0 none, 1 to check, 2 last check sent, 3 parked"
        ),
        sa.Column("check_due_at", sa.BigInteger()),
        sa.Column("check_count", sa.SmallInteger(), nullable=False),
        sa.Column("check_limit", sa.SmallInteger(), comment="set when an operator granted more checks"),
        sa.Column("parked_at", sa.BigInteger()),
        **MYSQL,
    )
    op.create_index(index("half_due"), table("half_message"), ["check_state", "producer_group_id", "check_due_at"])
    op.create_table(
        table("op_record"),
        sa.Column("transaction_id", Id, primary_key=True),
        sa.Column("state", sa.SmallInteger(), nullable=False, comment="2 committed, 3 rolled back"),
        sa.Column("source", sa.SmallInteger(), nullable=False, comment="1 producer, 2 check, 3 operator, 4 send"),
        sa.Column("producer_group_id", sa.Integer()),
        sa.Column("half_count", sa.SmallInteger(), nullable=False),
        sa.Column("check_count", sa.SmallInteger(), nullable=False),
        sa.Column("prepared_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(500)),
        sa.Column("released", Text, comment="JSON list of [queue_id, log_offset], by position"),
        **MYSQL,
    )
    op.create_index(index("op_decided"), table("op_record"), ["decided_at"])
    op.create_table(
        table("transaction_check"),
        sa.Column("transaction_id", Id, primary_key=True),
        sa.Column("check_number", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=False),
        sa.Column("broker_id", sa.String(255), nullable=False),
        sa.Column("client_id", sa.String(255), nullable=False),
        sa.Column("answered_at", sa.BigInteger()),
        sa.Column("verdict", sa.SmallInteger(), comment="1 commit, 2 rollback, 3 unknown"),
        sa.Column("reason", sa.String(500)),
        **MYSQL,
    )
    op.create_table(
        table("operator_action"),
        sa.Column("action_id", Counter, primary_key=True, autoincrement=True),
        sa.Column("transaction_id", Id, nullable=False),
        sa.Column("action", sa.String(20), nullable=False),
        sa.Column("operator", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("acted_at", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
    op.create_index(index("operator_action_transaction"), table("operator_action"), ["transaction_id"])
    op.create_table(
        table("message"),
        sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("log_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("transaction_id", Id, nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("body", Body, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("tag", sa.String(255)),
        sa.Column("message_keys", Text, comment="JSON list"),
        sa.Column("message_group", sa.String(64)),
        sa.Column("properties", Text, comment="JSON object"),
        sa.Column("born_at", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
    op.create_table(
        table("consumer_group"),
        sa.Column("group_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("name", name="consumer_group_name"),
        **MYSQL,
    )
    op.create_table(
        table("group_progress"),
        sa.Column("group_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("queue_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False, comment="the next offset never handed out"),
        **MYSQL,
    )
    op.create_table(
        table("lease"),
        sa.Column("lease_id", Counter, primary_key=True, autoincrement=True),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("settled", Bits, comment="bitmap, little endian"),
        sa.Column("moved", Bits, comment="bitmap of those settled by moving to another lease"),
        sa.Column("owner", sa.String(255)),
        sa.Column("token", sa.BigInteger(), nullable=False, comment="changes with every take-over"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("available_at", sa.BigInteger(), nullable=False),
        sa.Column("last_error", sa.String(500)),
        **MYSQL,
    )
    op.create_index(index("lease_queue"), table("lease"), ["group_id", "queue_id", "first_offset"])
    op.create_index(index("lease_available"), table("lease"), ["group_id", "available_at", "queue_id"])
    op.create_table(
        table("maintenance_turn"),
        sa.Column("task", sa.String(50), primary_key=True),
        sa.Column("broker_id", sa.String(255), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
