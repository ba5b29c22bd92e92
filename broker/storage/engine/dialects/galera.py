"""MariaDB with Galera."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymysql

from broker.storage.engine.cluster.galera import role_in_cluster
from broker.storage.engine.cluster.galera_writer import NodeSession, wait_for_others
from broker.storage.engine.cluster.role import Kind
from broker.storage.engine.dialects.mariadb import MariaDB
from broker.storage.engine.dialects.servers import READ_ONLY
from broker.storage.engine.dialects.sockets import answering_within
from broker.storage.engine.statements import Unexpected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.storage.engine.cluster.role import Role
    from broker.storage.engine.statements import Answer, Statement

_NODE = "halfmq_node"
"""Attribute of a connection that may write."""


class Galera(MariaDB):
    """A node of a cluster: every database transaction is one of the node that brokers write to."""

    kinds = frozenset({Kind.GALERA})
    claims_commit = True

    def take_part(self, connection: Any, writer_table: str, within: float) -> Role:
        """Waits until this node has what others have committed, and asks it whether it is the writer."""
        with answering_within(connection, within):
            wait_for_others(connection)
            role = role_in_cluster(connection, writer_table)
            connection.rollback()
        if role.writable and role.writer:
            setattr(connection, _NODE, NodeSession(role.writer))
        return role

    def may_keep(self, connection: Any) -> bool:
        """Not one of before the first migration: it would not know when another node is the writer."""
        return hasattr(connection, _NODE)

    def finish(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements and the COMMIT, on the condition that this node still is the writer."""
        node: NodeSession | None = getattr(cursor.connection, _NODE, None)
        if node is None:
            return super().finish(cursor, statements, named)
        claim = node.claim()
        try:
            return super().finish(cursor, [*statements, claim], named)[:-1]
        except Unexpected as error:
            if error.statement is not claim:
                raise
            reason = "brokers write to another node of the cluster"
            raise pymysql.err.OperationalError(READ_ONLY, reason) from error
