"""The tables.

Times are BIGINT microseconds since 1970 (UTC). Texts compare by their bytes (utf8mb4_bin): 'Topic' is not 'topic'.
Names cannot end in a space (validated earlier), so PAD SPACE has no effect.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

metadata = sa.MetaData()

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

# Numbers are never reused, on SQLite too: a receipt must not match another lease, nor a consumer another group.
_NUMBERED: dict[str, Any] = {**_MYSQL, "sqlite_autoincrement": True}

Id = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
Body = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
Bits = sa.LargeBinary(1024).with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
Text = sa.Text().with_variant(mysql.TEXT(), "mysql", "mariadb")
# SQLite generates numbers only for INTEGER keys.
Counter = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

topic = sa.Table(
    "topic",
    metadata,
    sa.Column("topic_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(127), nullable=False),
    sa.Column("queue_count", sa.Integer, nullable=False),
    sa.Column("retention", sa.BigInteger, nullable=False, comment="microseconds"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("retention_bytes", sa.BigInteger, nullable=False, server_default="0", comment="0: no bound"),
    sa.Column("dedup_window", sa.BigInteger, nullable=False, server_default="86400000000", comment="microseconds"),
    sa.Column("group_queues", sa.Integer, nullable=False, server_default="0", comment="queues of message groups"),
    sa.Column("deleted_at", sa.BigInteger, comment="set while its messages are being deleted"),
    sa.Column("compression", sa.SmallInteger, nullable=False, server_default="1", comment="1 none, 2 zstd"),
    sa.UniqueConstraint("name", name="topic_name"),
    **_NUMBERED,
)

queue = sa.Table(
    "queue",
    metadata,
    sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("topic_id", sa.Integer, nullable=False),
    sa.Column("queue_no", sa.Integer, nullable=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False, comment="offset of the next message released"),
    sa.Column("min_offset", sa.BigInteger, nullable=False, comment="first offset that is kept"),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default="0", comment="of the messages in it"),
    sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default="0", comment="of the bodies in it"),
    sa.Column("deleted_at", sa.BigInteger, comment="set while its messages are being deleted"),
    sa.UniqueConstraint("topic_id", "queue_no", name="queue_of_topic"),
    **_NUMBERED,
)

producer_group = sa.Table(
    "producer_group",
    metadata,
    sa.Column("producer_group_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(120), nullable=False),
    sa.UniqueConstraint("name", name="producer_group_name"),
    **_MYSQL,
)

half_message = sa.Table(
    "half_message",
    metadata,
    sa.Column("transaction_id", Id, primary_key=True),
    sa.Column("position", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("producer_group_id", sa.Integer, nullable=False),
    sa.Column("topic_id", sa.Integer, nullable=False),
    sa.Column("queue_no", sa.Integer, comment="set when a message group decides the queue"),
    sa.Column("body", Body, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("tag", sa.String(255)),
    sa.Column("message_keys", Text, comment="JSON list"),
    sa.Column("message_group", sa.String(64)),
    sa.Column("properties", Text, comment="JSON object"),
    sa.Column("born_at", sa.BigInteger, nullable=False),
    # The row at position 0 has the check state of the whole transaction; the others have check_state 0 and no times.
    sa.Column(
        "check_state", sa.SmallInteger, nullable=False, comment="0 none, 1 to check, 2 last check sent, 3 parked"
    ),
    sa.Column("check_due_at", sa.BigInteger),
    sa.Column("check_count", sa.SmallInteger, nullable=False),
    sa.Column("check_limit", sa.SmallInteger, comment="set when an operator granted more checks"),
    sa.Column("parked_at", sa.BigInteger),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("deliver_at", sa.BigInteger, comment="set when it is not to be delivered at once"),
    sa.Column("dedup_hash", Id, comment="of its dedup_key"),
    sa.Index("half_due", "check_state", "producer_group_id", "check_due_at"),
    **_MYSQL,
)

op_record = sa.Table(
    "op_record",
    metadata,
    sa.Column("transaction_id", Id, primary_key=True),
    sa.Column("state", sa.SmallInteger, nullable=False, comment="2 committed, 3 rolled back"),
    sa.Column("source", sa.SmallInteger, nullable=False, comment="1 producer, 2 check, 3 operator, 4 send, 5 sink"),
    sa.Column("producer_group_id", sa.Integer),
    sa.Column("half_count", sa.SmallInteger, nullable=False),
    sa.Column("check_count", sa.SmallInteger, nullable=False),
    sa.Column("prepared_at", sa.BigInteger, nullable=False),
    sa.Column("decided_at", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.String(500)),
    # Otherwise while a message is scheduled, or once it was recalled: see broker.domain.place.
    sa.Column("released", Text, comment="JSON list of [queue_id, log_offset], by position"),
    sa.Column("parked_at", sa.BigInteger, comment="when it last was parked"),
    sa.Index("op_decided", "decided_at"),
    **_MYSQL,
)

scheduled_message = sa.Table(
    "scheduled_message",
    metadata,
    sa.Column("deliver_at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("transaction_id", Id, primary_key=True),
    sa.Column("position", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("topic_id", sa.Integer, nullable=False),
    sa.Column("queue_no", sa.Integer, comment="set when a message group decides the queue"),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("body", Body, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("tag", sa.String(255)),
    sa.Column("message_keys", Text, comment="JSON list"),
    sa.Column("message_group", sa.String(64)),
    sa.Column("properties", Text, comment="JSON object"),
    sa.Column("born_at", sa.BigInteger, nullable=False),
    sa.Index("scheduled_id", "transaction_id", "position"),
    # The size, so that a tenant's bytes are added up from the index.
    sa.Index("scheduled_size", "topic_id", "size"),
    **_MYSQL,
)

_SUBMITTED: tuple[sa.Column[Any], ...] = (
    sa.Column("message_id", Id, comment="its identity; none: the broker generates one"),
    sa.Column("topic_name", sa.String(127), nullable=False),
    sa.Column("body", Body, nullable=False),
    sa.Column("tag", Text),
    sa.Column("message_keys", Text, comment="JSON list"),
    sa.Column("message_group", sa.String(64)),
    sa.Column("properties", Text, comment="JSON object"),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("deliver_at", sa.BigInteger, comment="earliest delivery"),
    sa.Column("delay", sa.BigInteger, comment="instead: time from its release on, in microseconds"),
    sa.Column("deduplication_key", sa.String(255)),
)

# Applications insert here, in transactions of their own; the broker releases what is committed.
submission = sa.Table(
    "submission",
    metadata,
    sa.Column("submission_id", Counter, primary_key=True, autoincrement=True),
    *(each._copy() for each in _SUBMITTED),
    **_NUMBERED,
)

refused_submission = sa.Table(
    "refused_submission",
    metadata,
    sa.Column("submission_id", sa.BigInteger, primary_key=True, autoincrement=False),
    *(each._copy() for each in _SUBMITTED),
    sa.Column("refused_at", sa.BigInteger, nullable=False),
    sa.Column("cause", sa.String(500), nullable=False),
    **_MYSQL,
)

dedup_key = sa.Table(
    "dedup_key",
    metadata,
    sa.Column("topic_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("dedup_hash", Id, primary_key=True),
    sa.Column("transaction_id", Id, nullable=False),
    sa.Column("position", sa.SmallInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Index("dedup_expires", "expires_at"),
    **_MYSQL,
)

sink = sa.Table(
    "sink",
    metadata,
    sa.Column("sink_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("query_id", sa.String(100), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, comment="grows when another query takes it over"),
    sa.Column("committed_epoch", sa.BigInteger),
    sa.Column("committed_at", sa.BigInteger),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("position", Body, comment="how far the job has read its source, in its own form"),
    sa.Column(
        "went_back", sa.SmallInteger, nullable=False, server_default="0", comment="1: the next epoch must follow"
    ),
    sa.UniqueConstraint("name", name="sink_name"),
    **_NUMBERED,
)

sink_transaction = sa.Table(
    "sink_transaction",
    metadata,
    sa.Column("transaction_id", Id, primary_key=True),
    sa.Column("sink_id", sa.Integer, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("attempt_id", Id, nullable=False),
    sa.Column("half_count", sa.Integer, nullable=False),
    sa.Column("prepared_at", sa.BigInteger, nullable=False),
    sa.Index("sink_epoch", "sink_id", "generation", "epoch"),
    sa.Index("sink_prepared", "prepared_at"),
    **_MYSQL,
)

transaction_check = sa.Table(
    "transaction_check",
    metadata,
    sa.Column("transaction_id", Id, primary_key=True),
    sa.Column("check_number", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("sent_at", sa.BigInteger, nullable=False),
    sa.Column("broker_id", sa.String(255), nullable=False),
    sa.Column("client_id", sa.String(255), nullable=False),
    sa.Column("answered_at", sa.BigInteger),
    sa.Column("verdict", sa.SmallInteger, comment="1 commit, 2 rollback, 3 unknown"),
    sa.Column("reason", sa.String(500)),
    **_MYSQL,
)

operator_action = sa.Table(
    "operator_action",
    metadata,
    sa.Column("action_id", Counter, primary_key=True, autoincrement=True),
    sa.Column("transaction_id", Id, nullable=False),
    sa.Column("action", sa.String(20), nullable=False),
    sa.Column("operator", sa.String(255), nullable=False),
    sa.Column("reason", sa.String(500), nullable=False),
    sa.Column("acted_at", sa.BigInteger, nullable=False),
    sa.Index("operator_action_transaction", "transaction_id"),
    **_MYSQL,
)

message = sa.Table(
    "message",
    metadata,
    sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("log_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("transaction_id", Id, nullable=False),
    sa.Column("position", sa.SmallInteger, nullable=False),
    sa.Column("body", Body, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("tag", sa.String(255)),
    sa.Column("message_keys", Text, comment="JSON list"),
    sa.Column("message_group", sa.String(64)),
    sa.Column("properties", Text, comment="JSON object"),
    sa.Column("born_at", sa.BigInteger, nullable=False),
    sa.Column("stored_at", sa.BigInteger, nullable=False),
    **_MYSQL,
)

message_key = sa.Table(
    "message_key",
    metadata,
    sa.Column("topic_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key_hash", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("log_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    **_MYSQL,
)

consumer_group = sa.Table(
    "consumer_group",
    metadata,
    sa.Column("group_id", sa.Integer, primary_key=True, autoincrement=True),
    # A member of a broadcasting group has the name group/client_id.
    sa.Column("name", sa.String(376), nullable=False),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("retry_delays", Text, comment="JSON list of microseconds; none: the default"),
    sa.Column("when_exhausted", sa.SmallInteger, nullable=False, server_default="1", comment="1 dead letter, 2 retry"),
    sa.Column("mode", sa.SmallInteger, nullable=False, server_default="1", comment="1 clustering, 2 broadcasting"),
    sa.Column("start_at", sa.BigInteger, comment="none: by the mode; 0 earliest, -1 latest, else a time"),
    sa.Column("paused_at", sa.BigInteger),
    sa.Column("pause_reason", sa.String(500)),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0", comment="grows with every change"),
    sa.Column("parent_id", sa.Integer, comment="broadcasting group that this member belongs to"),
    sa.Column("seen_at", sa.BigInteger, comment="when this member was here, to the hour"),
    sa.Column("keep_unread", sa.SmallInteger, nullable=False, server_default="0", comment="retention spares it"),
    sa.Column("fifo", sa.SmallInteger, nullable=False, server_default="0", comment="RocketMQ clients keep its order"),
    sa.UniqueConstraint("name", name="consumer_group_name"),
    sa.Index("group_members", "parent_id"),
    sa.Index("group_keeping", "keep_unread"),
    **_NUMBERED,
)

group_filter = sa.Table(
    "group_filter",
    metadata,
    sa.Column("group_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("topic_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.SmallInteger, nullable=False, comment="1 tags, 2 SQL"),
    sa.Column("expression", Text, nullable=False),
    **_MYSQL,
)

group_progress = sa.Table(
    "group_progress",
    metadata,
    sa.Column("group_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False, comment="the next offset never handed out"),
    **_MYSQL,
)

lease = sa.Table(
    "lease",
    metadata,
    sa.Column("lease_id", Counter, primary_key=True, autoincrement=True),
    sa.Column("group_id", sa.Integer, nullable=False),
    sa.Column("queue_id", sa.Integer, nullable=False),
    sa.Column("first_offset", sa.BigInteger, nullable=False),
    sa.Column("message_count", sa.Integer, nullable=False),
    sa.Column("settled", Bits, comment="bitmap, little endian"),
    sa.Column("moved", Bits, comment="bitmap of those settled by moving to another lease"),
    sa.Column("owner", sa.String(255)),
    sa.Column("token", sa.BigInteger, nullable=False, comment="changes with every take-over"),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("available_at", sa.BigInteger, nullable=False),
    sa.Column("last_error", sa.String(500)),
    sa.Column("message_group", sa.String(64), comment="all messages of the lease are of this group"),
    sa.Index("lease_available", "group_id", "available_at", "queue_id"),
    sa.Index("lease_queue", "group_id", "queue_id", "message_group", "first_offset"),
    **_NUMBERED,
)

delivery_event = sa.Table(
    "delivery_event",
    metadata,
    sa.Column("event_id", Counter, primary_key=True, autoincrement=True),
    sa.Column("queue_id", sa.Integer, nullable=False),
    sa.Column("first_offset", sa.BigInteger, nullable=False),
    sa.Column("message_count", sa.Integer, nullable=False),
    sa.Column("offsets", Bits, comment="bitmap, little endian; none: all"),
    sa.Column("group_id", sa.Integer, nullable=False),
    sa.Column("kind", sa.SmallInteger, nullable=False, comment="as TimelineEventType"),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("client_id", sa.String(255)),
    sa.Column("happened_at", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.String(500)),
    sa.Column("dead_letter", sa.BigInteger, comment="offset of the first in the dead letter topic"),
    sa.Index("event_place", "queue_id", "first_offset"),
    **_MYSQL,
)

redriven = sa.Table(
    "redriven",
    metadata,
    sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("log_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("redriven_at", sa.BigInteger, nullable=False),
    **_MYSQL,
)

maintenance_turn = sa.Table(
    "maintenance_turn",
    metadata,
    sa.Column("task", sa.String(50), primary_key=True),
    sa.Column("broker_id", sa.String(255), nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    **_MYSQL,
)

cluster_writer = sa.Table(
    "cluster_writer",
    metadata,
    sa.Column("slot", sa.SmallInteger, primary_key=True, autoincrement=False, comment="of a session; 0: of reports"),
    sa.Column("node", sa.String(255), nullable=False, comment="Galera: the node that brokers write to"),
    sa.Column("uses", sa.BigInteger, nullable=False, comment="transactions, reports"),
    **_MYSQL,
)

broker = sa.Table(
    "broker",
    metadata,
    sa.Column("broker_id", sa.String(255), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("endpoint", sa.String(255), nullable=False),
    sa.Column("version", sa.String(255), nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False, comment="when it last reported"),
    sa.Column("producers", sa.Integer, nullable=False),
    sa.Column("consumers", sa.Integer, nullable=False),
    sa.Column("clients", Body, nullable=False, comment="JSON list, packed by zlib"),
    **_MYSQL,
)

# Offsets that may have been given in a time which a restore undid; there is no message in them.
offset_gap = sa.Table(
    "offset_gap",
    metadata,
    sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("first_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False, comment="messages go on here"),
    **_MYSQL,
)

restoration = sa.Table(
    "restoration",
    metadata,
    sa.Column("first_number", sa.BigInteger, primary_key=True, autoincrement=False, comment="given since then"),
    sa.Column("told_at", sa.BigInteger, nullable=False),
    sa.Column("handled", sa.SmallInteger, nullable=False, comment="0: a broker noticed it, nothing is done yet"),
    sa.Column("told_by", sa.String(255), nullable=False),
    **_MYSQL,
)

# Cells: several databases that one broker serves. All tables of this part are in each of them; rows of `placement` and
# `cell_move` are in the home database alone.
cell = sa.Table(
    "cell",
    metadata,
    sa.Column("cell_no", sa.SmallInteger, primary_key=True, autoincrement=False, comment="0: the home database"),
    sa.Column("name", sa.String(30), nullable=False),
    sa.Column("installation", Id, nullable=False, comment="the same in all cells"),
    sa.Column("own", sa.SmallInteger, nullable=False, comment="1: of this database"),
    sa.UniqueConstraint("name", name="cell_name"),
    **_MYSQL,
)

placement = sa.Table(
    "placement",
    metadata,
    sa.Column("kind", sa.SmallInteger, primary_key=True, autoincrement=False, comment="1 topic, 2 group, 3 sink"),
    sa.Column("name", sa.String(376), primary_key=True),
    sa.Column("cell_no", sa.SmallInteger, nullable=False),
    sa.Column("move_id", sa.Integer, comment="set while it is being moved"),
    sa.Index("placement_cell", "cell_no", "kind"),
    sa.Index("placement_move", "move_id"),
    **_MYSQL,
)

cell_move = sa.Table(
    "cell_move",
    metadata,
    sa.Column("move_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("from_cell", sa.SmallInteger, nullable=False),
    sa.Column("to_cell", sa.SmallInteger, nullable=False),
    sa.Column("state", sa.SmallInteger, nullable=False, comment="1 begun, 2 done, 3 given up"),
    sa.Column("names", Body, nullable=False, comment="JSON list of [kind, name]"),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("told_by", sa.String(255), nullable=False),
    **_NUMBERED,
)

# In the cell that is left, and in the one that is moved to.
move_state = sa.Table(
    "move_state",
    metadata,
    sa.Column("move_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.SmallInteger, nullable=False, comment="1 coming, 2 come, 3 given up; 4 sealed, 5 gone"),
    sa.Column("since", sa.BigInteger, nullable=False),
    **_MYSQL,
)

# What is sealed: rows that are taken out of their tables until it is decided where they belong.
moving_row = sa.Table(
    "moving_row",
    metadata,
    sa.Column("move_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("row_no", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("origin", sa.String(40), nullable=False, comment="its table"),
    sa.Column("content", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False),
    **_MYSQL,
)

moved_name = sa.Table(
    "moved_name",
    metadata,
    sa.Column("kind", sa.SmallInteger, primary_key=True, autoincrement=False, comment="as in placement"),
    sa.Column("name", sa.String(376), primary_key=True),
    sa.Column("move_id", sa.Integer, nullable=False, comment="by which it left this cell"),
    **_MYSQL,
)

access_rule = sa.Table(
    "access_rule",
    metadata,
    sa.Column("rule_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("subject", sa.String(255), nullable=False, comment="user:name, user:* or role:name"),
    sa.Column("kind", sa.String(16), nullable=False, comment="of the resource, or *"),
    sa.Column("pattern", sa.String(255), nullable=False, comment="of its name"),
    sa.Column("actions", sa.Integer, nullable=False, comment="bits"),
    sa.Column("allow", sa.SmallInteger, nullable=False, comment="0 denies"),
    sa.Column("sources", Text, comment="JSON list of networks; none: any"),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("made_by", sa.String(255), nullable=False),
    **_NUMBERED,
)

tenant_quota = sa.Table(
    "tenant_quota",
    metadata,
    sa.Column("tenant", sa.String(40), primary_key=True, comment="* for those without one"),
    sa.Column("messages_per_second", sa.BigInteger, nullable=False, comment="0: no limit; so are the others"),
    sa.Column("bytes_per_second", sa.BigInteger, nullable=False),
    sa.Column("topics", sa.BigInteger, nullable=False),
    sa.Column("consumer_groups", sa.BigInteger, nullable=False, comment="and those of producers"),
    sa.Column("retained_bytes", sa.BigInteger, nullable=False),
    sa.Column("streams", sa.BigInteger, nullable=False),
    sa.Column("pending", sa.BigInteger, nullable=False, comment="transactions without a verdict"),
    sa.Column("set_at", sa.BigInteger, nullable=False),
    sa.Column("set_by", sa.String(255), nullable=False),
    **_MYSQL,
)

audit_record = sa.Table(
    "audit_record",
    metadata,
    sa.Column("audit_id", Counter, primary_key=True, autoincrement=True),
    sa.Column("happened_at", sa.BigInteger, nullable=False),
    sa.Column("broker_id", sa.String(255), nullable=False),
    sa.Column("principal", sa.String(255), nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
    sa.Column("call_name", sa.String(100), nullable=False),
    sa.Column("action", sa.String(20), nullable=False),
    sa.Column("resource", sa.String(255), nullable=False),
    sa.Column("outcome", sa.SmallInteger, nullable=False, comment="as AuditOutcome"),
    sa.Column("times", sa.BigInteger, nullable=False, comment="equal refusals that were merged"),
    sa.Column("detail", Text, nullable=False),
    sa.Index("audit_time", "happened_at"),
    sa.Index("audit_principal", "principal", "audit_id"),
    **_NUMBERED,
)
