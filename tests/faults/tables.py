"""What the tables of a broker's database hold, past all brokers."""

from __future__ import annotations

from typing import Any

from support.databases import connect

# Rows that refer to something that is not there, by what they are.
_LEFT_OVER = {
    "queues of no topic": "SELECT queue_id FROM queue WHERE topic_id NOT IN (SELECT topic_id FROM topic)",
    "messages of no queue": "SELECT queue_id FROM message WHERE queue_id NOT IN (SELECT queue_id FROM queue)",
    "progress of no group": (
        "SELECT group_id FROM group_progress WHERE group_id NOT IN (SELECT group_id FROM consumer_group)"
    ),
    "progress in no queue": "SELECT queue_id FROM group_progress WHERE queue_id NOT IN (SELECT queue_id FROM queue)",
    "leases of no group": "SELECT lease_id FROM lease WHERE group_id NOT IN (SELECT group_id FROM consumer_group)",
    "leases in no queue": "SELECT lease_id FROM lease WHERE queue_id NOT IN (SELECT queue_id FROM queue)",
    "groups without a dead letter topic": (
        "SELECT name FROM consumer_group WHERE CONCAT('%DLQ%', name) NOT IN (SELECT name FROM topic)"
    ),
    "keys of no message": (
        "SELECT k.key_hash FROM message_key k LEFT JOIN message m ON m.queue_id = k.queue_id AND"
        " m.log_offset = k.log_offset WHERE m.queue_id IS NULL"
    ),
    "dedup keys of no topic": "SELECT topic_id FROM dedup_key WHERE topic_id NOT IN (SELECT topic_id FROM topic)",
    "queues that count other bytes than they hold": (
        "SELECT queue_id FROM queue q WHERE stored_bytes <> COALESCE((SELECT SUM(m.size) FROM message m"
        " WHERE m.queue_id = q.queue_id), 0)"
    ),
    "scheduled messages of no op record": (
        "SELECT HEX(transaction_id) FROM scheduled_message WHERE transaction_id NOT IN"
        " (SELECT transaction_id FROM op_record)"
    ),
    "op records that wait for nothing": (
        "SELECT HEX(transaction_id) FROM op_record WHERE released LIKE '%[0,%' AND transaction_id NOT IN"
        " (SELECT transaction_id FROM scheduled_message)"
    ),
    "half messages of a decided transaction": (
        "SELECT HEX(transaction_id) FROM half_message WHERE transaction_id IN (SELECT transaction_id FROM op_record)"
    ),
    "half messages without a first one": (
        "SELECT HEX(transaction_id) FROM half_message WHERE transaction_id NOT IN"
        " (SELECT transaction_id FROM half_message WHERE position = 0)"
    ),
    **{
        f"{table} of no transaction": (
            f"SELECT HEX(transaction_id) FROM {table} WHERE transaction_id NOT IN"
            " (SELECT transaction_id FROM op_record) AND transaction_id NOT IN"
            " (SELECT transaction_id FROM half_message)"
        )
        for table in ("transaction_check", "operator_action")
    },
}


def query(database: str, statement: str) -> list[tuple[Any, ...]]:
    """Runs a statement in a database transaction of its own; its rows."""
    with connect(database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def count(database: str, table: str) -> int:
    """How many rows a table has."""
    return int(query(database, f"SELECT COUNT(*) FROM {table}")[0][0])


def left_over(database: str) -> list[str]:
    """What is half there: rows that refer to nothing, in words."""
    with connect(database, autocommit=True) as connection, connection.cursor() as cursor:
        wrong = []
        for what, statement in _LEFT_OVER.items():
            cursor.execute(statement)
            wrong += [f"{what}: {row[0]}" for row in cursor.fetchall()]
        return wrong
