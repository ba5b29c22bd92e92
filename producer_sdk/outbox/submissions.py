"""The outbox without a relay: messages are rows of the broker's own table, written in the business transaction.

The broker releases what is committed, under the locks of its queues; the business transaction locks nothing but the new
rows. Inserting is the only right that it needs.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

from client_core.errors import ConfigurationError
from client_core.local_database import Failure, VerifiedDatabases, first_line_of, naming_character, placed
from client_core.local_database.drivers import AUTOCOMMITS
from producer_sdk.outbox.states import OutboxState

if TYPE_CHECKING:
    from client_core.local_database import LocalDatabase, LocalTransaction
    from producer_sdk.outbox.content import Content

__all__ = ["SubmissionRows", "refuse_without_table"]

_TABLES = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[a-z0-9_]{0,40}")
_NOT_HERE = (
    "with same_server the broker has the messages as soon as the transaction commits: there is no table of the outbox "
    "and no relay, so that announce(), confirm(), cancel(), state(), status(), errors(), retry(), skip() and relay() "
    "have nothing to work on; what cannot be a message is in the broker's table refused_submission"
)


class SubmissionRows:
    """The statements that run in business transactions; the names in them are checked, values are bound."""

    def __init__(self, broker_tables: str, home: str = "") -> None:
        """Takes what precedes the names of the broker's tables: a schema with a dot, and its table prefix.

        Args:
            broker_tables: That.
            home: The schema where it names none.

        Raises:
            ConfigurationError: It can be neither.
        """
        if not isinstance(broker_tables, str) or not _TABLES.fullmatch(broker_tables):
            msg = (
                "broker_tables is what precedes the names of the broker's tables, such as 'halfmq.' for those of the "
                f"schema halfmq, or 'halfmq.hq_' where they have a prefix, not {broker_tables!r}"
            )
            raise ConfigurationError(msg, field="broker_tables")
        self._table = placed(f"{broker_tables}submission", home)
        self._tried = VerifiedDatabases()
        # Inserts nothing, and needs no right but that.
        self._nothing = (
            f"INSERT INTO {self._table} (topic_name, body) SELECT 'none', 'none'"  # noqa: S608
            " FROM (SELECT 1 AS one) AS rows_of_none WHERE one = 0"
        )

    def put(
        self,
        local: LocalTransaction,
        content: Content,
        state: OutboxState = OutboxState.LOCAL_COMMIT,
        due_in: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        """Inserts a message; the broker has it when the transaction commits.

        Raises:
            ConfigurationError: It is to wait for a decision or has a deadline, or it is committed already.
        """
        if state is not OutboxState.LOCAL_COMMIT or deadline is not None:
            msg = "decide_after and deadline need the outbox's own table: leave same_server out for such messages"
            raise ConfigurationError(msg, field="deadline" if deadline is not None else "decide_after")
        if not self._tried.has(local):
            # Before anything is inserted: what commits by itself cannot be taken back without another right.
            self._try(local)
            if local.in_transaction() is False:
                raise ConfigurationError(AUTOCOMMITS, field="database")
            self._tried.add(local)
        own_id, id_value = local.binary("message_id", uuid.UUID(content.message_id).bytes)
        body, body_value = local.binary("body", content.body)
        places = {"message_id": own_id, "body": body}
        values = {"message_id": id_value, "body": body_value, **_columns(content)}
        with naming_character(self._table):
            local.execute(
                f"INSERT INTO {self._table} ({', '.join(values)})"  # noqa: S608
                f" VALUES ({', '.join(places.get(name) or f':{name}' for name in values)})",
                **values,
            )
        if local.in_transaction() is False:
            # It is committed already, for something that has not happened. By its key: others go on meanwhile.
            last = "last_insert_rowid()" if local.dialect.name == "sqlite" else "LAST_INSERT_ID()"
            delete = f"DELETE FROM {self._table} WHERE submission_id = {last} AND message_id = {own_id}"  # noqa: S608
            with contextlib.suppress(Exception):
                local.execute(delete, message_id=id_value)
            raise ConfigurationError(AUTOCOMMITS, field="database")

    def identity(self, database: LocalDatabase) -> str:
        """The name of the table, which is there.

        Raises:
            ConfigurationError: It is not, or may not be written.
            Exception: The database's own, for example because it does not answer.
        """
        with database.transaction() as local:
            if local.dialect.name == "postgresql":
                msg = "same_server: brokers have their tables on MySQL, MariaDB and SQLite, not on PostgreSQL"
                raise ConfigurationError(msg, field="same_server")
            self._try(local)
        return self._table

    def _try(self, local: LocalTransaction) -> None:
        try:
            local.execute(self._nothing)
        except Exception as error:
            if local.dialect.failure_of(error) is not Failure.NO_TABLE:
                raise
            msg = (
                f"same_server: rows cannot be inserted into the broker's table {self._table} by this connection:"
                f" {first_line_of(error)}; broker_tables names the schema (and prefix) of the broker's tables, such as"
                " 'halfmq.', and the right is GRANT INSERT on that table"
            )
            raise ConfigurationError(msg, field="broker_tables") from error

    def verify(self, local: LocalTransaction, identity: str) -> None:
        """Nothing is to be verified: the row itself is in the broker's table."""

    def confirm(self, local: LocalTransaction, message_id: str) -> NoReturn:
        """There is nothing to confirm.

        Raises:
            ConfigurationError: Always.
        """
        refuse_without_table()


def refuse_without_table() -> NoReturn:
    """Refuses what needs the outbox's own table.

    Raises:
        ConfigurationError: Always.
    """
    raise ConfigurationError(_NOT_HERE, field="same_server")


def _columns(content: Content) -> dict[str, Any]:
    """The columns that a message has, without its id and its body; the others are NULL, or have a default."""
    headers = content.headers
    columns = {
        "topic_name": content.topic,
        "tag": headers.get("tag"),
        "message_keys": _json(headers.get("keys")),
        "message_group": content.message_group,
        "properties": _json(headers.get("properties")),
        "priority": headers.get("priority"),
        "deliver_at": headers.get("deliver_at"),
        "deduplication_key": headers.get("dedup_key"),
    }
    return {name: value for name, value in columns.items() if value is not None}


def _json(value: object) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None
