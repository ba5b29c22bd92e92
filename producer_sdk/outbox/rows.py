"""What applications write into the outbox, in their own transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError, LocalTransactionRefused
from client_core.local_database import asking_for, identity_of
from client_core.local_database.drivers import AUTOCOMMITS
from producer_sdk.outbox.states import OutboxState

if TYPE_CHECKING:
    from client_core.local_database import LocalDatabase, LocalTransaction
    from producer_sdk.outbox.content import Content
    from producer_sdk.outbox.schema import OutboxSchema

__all__ = ["OutboxRows"]

THE_RELAY = "relay"
"""The name of the one row of the table of turns."""


class OutboxRows:
    """The statements that run in business transactions; names in them are checked, values are bound."""

    def __init__(self, schema: OutboxSchema) -> None:
        """Takes the tables."""
        self._table = schema.messages.path
        self._turn = schema.turn.path

    def put(
        self,
        local: LocalTransaction,
        content: Content,
        state: OutboxState = OutboxState.LOCAL_COMMIT,
        due_in: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        """Inserts a message; it can be seen when the transaction commits.

        Raises:
            ConfigurationError: The transaction has committed it already.
        """
        now = local.dialect.now
        columns = content.columns()
        body, columns["body"] = local.binary("body", content.body)
        until = "NULL" if deadline is None else f"{now} + {micros(deadline)}"
        with asking_for(self._table, lambda: local.dialect):
            local.execute(
                f"INSERT INTO {self._table} (message_id, topic, message_group, state, retries, due_at, deadline,"  # noqa: S608
                " created_at, changed_at, headers, size, body) VALUES (:message_id, :topic, :message_group, :state, 0,"
                f" {now} + {micros(due_in)}, {until}, {now}, {now},"
                f" :headers, :size, {body})",
                state=state.value,
                **columns,
            )
        if local.in_transaction() is False:
            # It is committed already, for something that has not happened.
            local.execute(
                f"DELETE FROM {self._table} WHERE message_id = :message_id",  # noqa: S608
                message_id=content.message_id,
            )
            raise ConfigurationError(AUTOCOMMITS, field="database")

    def confirm(self, local: LocalTransaction, message_id: str) -> None:
        """UNKNOWN becomes LOCAL_COMMIT, with the business transaction.

        Raises:
            LocalTransactionRefused: It was decided otherwise before.
        """
        now = local.dialect.now
        changed = local.execute(
            f"UPDATE {self._table} SET state = :to_state, retries = 0, due_at = {now}, changed_at = {now}, cause = NULL"  # noqa: S608
            " WHERE message_id = :message_id AND state = :from_state",
            message_id=message_id,
            from_state=OutboxState.UNKNOWN.value,
            to_state=OutboxState.LOCAL_COMMIT.value,
        )
        if local.in_transaction() is False:
            raise ConfigurationError(AUTOCOMMITS, field="database")
        if changed != 1:
            found = self.state(local, message_id)
            if found in {OutboxState.LOCAL_COMMIT, OutboxState.GLOBAL_COMMIT}:
                msg = (
                    f"message {message_id} is confirmed already ({found.value}), and is confirmed once: if that was "
                    "another business transaction, roll this one back"
                )
                raise LocalTransactionRefused(msg)
            is_now = "is not in the outbox (or not any more)" if found is None else f"is {found.value}"
            msg = (
                f"message {message_id} {is_now}, and cannot be confirmed any more: roll back, and run the business "
                "transaction again with a message announced anew"
            )
            raise LocalTransactionRefused(msg)

    def cancel(self, local: LocalTransaction, message_id: str, cause: str) -> bool:
        """UNKNOWN becomes LOCAL_ROLLBACK; False: it was not UNKNOWN."""
        now = local.dialect.now
        return (
            local.execute(
                f"UPDATE {self._table} SET state = :to_state, changed_at = {now}, cause = :cause"  # noqa: S608
                " WHERE message_id = :message_id AND state = :from_state",
                message_id=message_id,
                cause=brief(cause),
                from_state=OutboxState.UNKNOWN.value,
                to_state=OutboxState.LOCAL_ROLLBACK.value,
            )
            == 1
        )

    def state(self, local: LocalTransaction, message_id: str) -> OutboxState | None:
        """Where a message stands, as this transaction sees it; None: it is not there, or not any more."""
        rows = local.fetch(f"SELECT state FROM {self._table} WHERE message_id = :message_id", message_id=message_id)  # noqa: S608
        return OutboxState(rows[0][0]) if rows else None

    def identity(self, database: LocalDatabase) -> str:
        """Which outbox this is; names it at the first time."""
        insert = (
            f"INSERT INTO {self._turn} (name, identity, owner, token, until_at)"  # noqa: S608
            " VALUES (:name, :identity, :owner, 0, 0)"
        )
        return identity_of(
            database,
            self._identity,
            lambda local, new: local.execute(insert, name=THE_RELAY, identity=new, owner=""),
        )

    def verify(self, local: LocalTransaction, identity: str) -> None:
        """Refuses a transaction on another outbox than the one that the relay empties.

        Raises:
            ConfigurationError: It is another one, or there is none.
        """
        if self._identity(local) != identity:
            msg = (
                f"the transaction's table {self._table} is not the one of the Outbox: give both the same database (if "
                "it is the same: call create_tables() before the transaction begins)"
            )
            raise ConfigurationError(msg, field="database")

    def _identity(self, local: LocalTransaction) -> str | None:
        with asking_for(self._turn, lambda: local.dialect):
            rows = local.fetch(f"SELECT identity FROM {self._turn} WHERE name = :name", name=THE_RELAY)  # noqa: S608
        return str(rows[0][0]) if rows else None


def micros(seconds: float) -> int:
    """Microseconds; bounded, so that a sum with a time stays a 64-bit number."""
    return min(round(seconds * 1_000_000), 1 << 60)


def brief(cause: Any) -> str:
    """A cause as it is stored."""
    return str(cause).replace("\x00", " ")[:2000]
