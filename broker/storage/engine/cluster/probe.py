"""Asks one server for its role, again and again, on a connection of its own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from broker.storage.engine.cluster import galera_writer
from broker.storage.engine.cluster.roles import kind_of, role_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.cluster.addresses import Address
    from broker.storage.engine.cluster.role import Kind, Role


class ServerProbe:
    """Asks one server. For one thread at a time.

    Attributes:
        address: of the server.
        waiting: it is being asked.
    """

    def __init__(
        self, address: Address, connect: Callable[[Address], Any], writer_table: str, *, only_looks: bool = False
    ) -> None:
        """Nothing is asked yet.

        Args:
            address: of the server.
            connect: makes a connection of the driver, with short timeouts.
            writer_table: the name of cluster_writer in the database.
            only_looks: Galera: do not report the use of the writer, and do not move it.
        """
        self.address = address
        self.waiting = False
        self._connect = connect
        self._writer_table = writer_table
        self._only_looks = only_looks
        self._connection: Any = None
        self._kind: Kind | None = None

    def ask(self) -> Role:
        """The server's role.

        Raises:
            Exception: the driver's own error when the server cannot be reached.
        """
        if self._connection is not None:
            try:
                return self._role()
            except Exception:  # It was idle, or the server was started again.
                self.close()
        try:
            self._connection = self._connect(self.address)
            self._kind = kind_of(self._connection)
            return self._role()
        except BaseException:
            self.close()
            raise

    def _role(self) -> Role:
        if self._kind is None:
            raise RuntimeError("asked before it was connected")
        role = role_of(self._connection, self._kind, self._writer_table)
        # Without the end of a transaction a later look would see what this one saw.
        self._connection.rollback()
        if role.writable and role.writer and not self._only_looks:
            galera_writer.report_use(self._connection, self._writer_table, role.writer)
        return role

    def take_over(self, role: Role) -> bool:
        """Galera: makes this node the writer, instead of the one in its role; returns whether it is."""
        if self._only_looks:
            return False
        try:
            return galera_writer.take_over(self._connection, self._writer_table, role.writer, role.node)
        except Exception:
            # Another node was faster, or this one lost the others.
            self.close()
            return False

    def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()
