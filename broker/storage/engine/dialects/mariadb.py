"""MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymysql

from broker.storage.engine.dialects.servers import Server

if TYPE_CHECKING:
    from broker.storage.engine.dialects.base import Target

# Where rows are logged, the server logs the text of the statement as well, in which a byte of a body takes two.
_NO_STATEMENTS_IN_LOG = "SET SESSION binlog_annotate_row_events = OFF"
# It joins a list of a thousand keys or more as a table, and may read all of the other one, whatever index is named.
_KEYS_ARE_LOOKED_UP = "SET SESSION in_predicate_conversion_threshold = 0"
_NO_PRIVILEGE = 1227


class MariaDB(Server):
    """MariaDB 10.6 and newer."""

    name = "mariadb"
    oldest = (10, 6)
    idle_setting = "idle_transaction_timeout"

    @classmethod
    def has_version(cls, version: str) -> bool:
        """Its version contains its name."""
        return "mariadb" in version.lower()

    def connect(self, target: Target, within: float) -> Any:
        """Connects, has keys of lists looked up, and leaves texts of statements out of the binary log where it may."""
        connection = super().connect(target, within)
        timeout, connection._read_timeout = connection._read_timeout, within
        try:
            with connection.cursor() as cursor:
                cursor.execute(_KEYS_ARE_LOOKED_UP)
                cursor.execute(_NO_STATEMENTS_IN_LOG)
        except pymysql.err.OperationalError as error:
            if error.args[0] != _NO_PRIVILEGE:
                raise
        connection._read_timeout = timeout
        return connection
