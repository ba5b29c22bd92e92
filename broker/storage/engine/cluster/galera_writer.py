"""Galera: the one node that halfmq's brokers write to.

Every node accepts writes. But a lock holds on one node, and of transactions on two nodes the cluster only compares
keys of the rows that they changed: two brokers on two nodes would not wait for each other where one locks what the
other builds upon. So brokers agree on one node, in the table `cluster_writer`. Every database transaction changes a
row of it, on the condition that it names the own node. Whoever moves the writer to another node changes all of its
rows. Of two transactions that change a row on two nodes the cluster refuses the later one, so nothing that began on
the former writer commits after the move, nor after a further move back to it: the writer's name has a number that
each move counts up.
"""

from __future__ import annotations

import secrets
from typing import Any

from broker.storage.engine.cluster.role import rows
from broker.storage.engine.statements import Statement

SLOTS = 64
"""Rows of the table: two sessions with the same one wait for each other's COMMIT."""
OF_WRITER = 0
"""The row by which brokers report that they use the writer; sessions have the others."""
_NO_SUCH_TABLE = 1146
_MOVES = "#"
"""Before the number of moves, in the writer's name."""


class NodeSession:
    """What a connection to the writer is: the writer's name, and the row that its transactions change."""

    def __init__(self, writer: str) -> None:
        """Takes the writer's name."""
        self.writer = writer
        self.slot = 1 + secrets.randbelow(SLOTS - 1)

    def claim(self) -> Statement:
        """Changes a row if this node still is the writer. Part of each COMMIT."""
        return Statement(
            "UPDATE cluster_writer SET uses = uses + 1 WHERE slot = ? AND node = ?",
            (self.slot, self.writer),
            expected=1,
        )


def node_of(writer: str) -> str:
    """The node of a writer's name."""
    return writer.partition(_MOVES)[0]


def moved(before: str, node: str) -> str:
    """The name of a node as the writer that follows another one."""
    return f"{node}{_MOVES}{int(before.partition(_MOVES)[2] or 0) + 1}"


def writer(connection: Any, table: str) -> tuple[str, int] | None:
    """The writer, and how often brokers reported that they use it; None: there is no table before the first migration.

    Args:
        connection: of the driver.
        table: the name of cluster_writer in the database.
    """
    try:
        found = rows(connection, f"SELECT node, uses FROM {table} WHERE slot = {OF_WRITER}")
    except Exception as error:
        if error.args[:1] != (_NO_SUCH_TABLE,):
            raise
        return None
    return (str(found[0][0]), int(found[0][1])) if found else ("", 0)


def report_use(connection: Any, table: str, writer: str) -> None:
    """Tells the others that this process uses the writer."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET uses = uses + 1 WHERE slot = {OF_WRITER} AND node = %s", (writer,))
    connection.commit()


def take_over(connection: Any, table: str, before: str, node: str) -> bool:
    """Makes a node the writer; returns whether that did not change meanwhile.

    Args:
        connection: of the driver, to the node.
        table: the name of cluster_writer in the database.
        before: the name of the present writer.
        node: the node.

    Raises:
        Exception: the driver's own error, such as when another node did the same.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT node FROM {table} WHERE slot = {OF_WRITER} FOR UPDATE")
        row = cursor.fetchone()
        if (str(row[0]) if row else "") != before:
            connection.rollback()
            return False
        cursor.execute(
            f"INSERT INTO {table} (slot, node, uses) VALUES {','.join(['(%s, %s, 0)'] * SLOTS)}"
            " ON DUPLICATE KEY UPDATE node = VALUES(node), uses = uses + 1",
            [value for slot in range(SLOTS) for value in (slot, moved(before, node))],
        )
    connection.commit()
    return True


def wait_for_others(connection: Any) -> None:
    """Returns when the node has applied everything that was committed in the cluster before."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION wsrep_sync_wait = 1")
        cursor.execute("SELECT 1 FROM information_schema.schemata LIMIT 1")
        cursor.fetchall()
        cursor.execute("SET SESSION wsrep_sync_wait = DEFAULT")
