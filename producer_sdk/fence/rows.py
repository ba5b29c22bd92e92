"""The fence's table: a row for each transaction, whose key is written once, by the local transaction or by a check.

* The local transaction inserts its id with ``committed``. The row becomes visible when it commits, together with its
  changes, or never.
* A check inserts the id with ``refused``. Where that works, the local transaction has not committed, and cannot any
  more: its own insert fails on the key. While the local transaction runs, its row is locked, and the check waits.

So the key decides between the two, and the answer to a check is never a guess.

One further row tells which table this is (IDENTITY). The insert reads it: a local transaction on another database than
the one that checks look at is refused, before a check looks for its row in the wrong place.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from client_core.errors import ConfigurationError, LocalTransactionRefused
from client_core.local_database import Column, Failure, HeldRow, Kind, Table, asking_for, identity_of
from client_core.states import LocalTransactionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_core.local_database import LocalDatabase, LocalTransaction

__all__ = ["COMMITTED", "FIRST", "REFUSED", "FenceRows"]

_log = logging.getLogger("halfmq.producer")

COMMITTED, REFUSED = "committed", "refused"
IDENTITY = "00000000-0000-0000-0000-000000000000"
FIRST = IDENTITY
"""Smaller than the id of every transaction."""
_DELETED_AT_ONCE = 50
"""Rows in one statement."""
_ATTEMPTS = 10
_LOOK_WAIT = 1.0
_STANDS_STILL = 10.0
"""Seconds after which the server ends the transaction of a check: a process that is frozen must not hold its row."""
LATEST_BEGIN = 3600.0
"""Seconds after which a transaction id can no longer begin a local transaction. Clean-up keeps refusals far longer."""


class FenceRows:
    """The statements on one fence table."""

    def __init__(self, table: str) -> None:
        """Takes the table's name.

        Raises:
            ConfigurationError: It is no name.
        """
        self.table = Table(table, (Column("transaction_id", Kind.ID), Column("state", Kind.WORD)))
        self._insert = f"INSERT INTO {table} (transaction_id, state) VALUES (:id, :state)"  # noqa: S608 - a checked name
        self._insert_here = (
            f"INSERT INTO {table} (transaction_id, state) SELECT {{id}}, '{{state}}' FROM {table}"  # noqa: S608
            " WHERE transaction_id = :first AND state = :identity"
        )
        self._select = f"SELECT state FROM {table} WHERE transaction_id = :id"  # noqa: S608
        self._select_range = (
            f"SELECT transaction_id, state FROM {table} WHERE transaction_id > :after AND transaction_id < :before"  # noqa: S608
            f" AND EXISTS (SELECT 1 FROM {table} WHERE transaction_id = :first AND state = :identity)"
            " ORDER BY transaction_id LIMIT 500"
        )
        self._delete = f"DELETE FROM {table} WHERE transaction_id = :id"  # noqa: S608

    def put(self, local: LocalTransaction, transaction_id: str, identity: str) -> None:
        """Notes in a local transaction that it is this one.

        Raises:
            ConfigurationError: It is on another table than the one that checks look at, or there is none.
            LocalTransactionRefused: A check was answered with ROLLBACK before, or the id is too old to begin.
        """
        try:
            with asking_for(self.table.name, lambda: local.dialect):
                inserted = self._put_here(local, transaction_id, COMMITTED, identity, local.noting())
        except Exception as error:
            if local.dialect.failure_of(error) is not Failure.DUPLICATE:
                raise
            msg = (
                f"the local transaction of {transaction_id} comes too late: a check has told the broker that it did not"
                " happen; roll back and run it again as a new transaction"
            )
            raise LocalTransactionRefused(msg, transaction_id=transaction_id) from error
        if not inserted:
            # A connection that has lost its place in what the server sends says the same.
            local.discard()
            raise self._another_table()
        if local.in_transaction() is False:
            # It is committed already, for something that has not happened.
            local.execute(self._delete, id=transaction_id)
            msg = (
                "the connection commits each statement by itself (autocommit); the block needs a transaction: switch "
                "autocommit off"
            )
            raise ConfigurationError(msg, field="database")
        if age(transaction_id) > LATEST_BEGIN:
            msg = f"transaction {transaction_id} began more than an hour ago; run it again as a new transaction"
            raise LocalTransactionRefused(msg, transaction_id=transaction_id)

    def _put_here(
        self, local: LocalTransaction, transaction_id: str, state: str, identity: str, noting: str = ""
    ) -> int:
        """Writes a row into the table of an identity; 0: the transaction is on another one."""
        expression = "CAST(:id AS VARCHAR(36))" if local.dialect.name == "postgresql" else ":id"
        return local.execute(
            self._insert_here.format(id=expression, state=state) + noting,
            id=transaction_id,
            first=IDENTITY,
            identity=identity,
        )

    def held(self, transaction_id: str) -> HeldRow:
        """The row of a local transaction that is open, for SameDatabase."""
        return HeldRow(self.table.name, {"id": transaction_id}, self._select, {"state": REFUSED}, self._insert)

    def state(self, local: LocalTransaction, transaction_id: str) -> str | None:
        """What a row says, as this transaction sees it; None: there is none."""
        rows = local.fetch(self._select, id=transaction_id)
        return str(rows[0][0]) if rows else None

    def known(self, database: LocalDatabase, transaction_id: str) -> LocalTransactionState | None:
        """The answer to a check where the row is committed: no lock, hardly a wait. None: it is not, so far."""
        reading: LocalTransaction | None = None
        try:
            with database.transaction(_LOOK_WAIT) as reading:
                return self.verdict(reading, transaction_id)
        except Exception as error:
            # At the isolation level SERIALIZABLE, where MySQL waits to read.
            failure = reading.dialect.failure_of(error) if reading is not None else Failure.OTHER
            if failure in {Failure.LOCKED, Failure.CONFLICT}:
                return None
            raise

    def answer(self, database: LocalDatabase, transaction_id: str, wait: float, identity: str) -> LocalTransactionState:
        """The answer to a check: exact, or UNKNOWN while the local transaction still runs.

        Args:
            database: Where to look.
            transaction_id: Which one.
            wait: Seconds to wait for a local transaction that still runs.
            identity: Which table it is; a pool may have connections that somebody left in another schema.

        Raises:
            ConfigurationError: The connection was one of these; the next one is another.
        """
        for _ in range(_ATTEMPTS):
            local: LocalTransaction | None = None
            try:
                with database.transaction(wait, _STANDS_STILL) as local:
                    if not self._put_here(local, transaction_id, REFUSED, identity):
                        local.discard()
                        raise self._moved()
            except Exception as error:
                failure = local.dialect.failure_of(error) if local is not None else Failure.OTHER
                if failure is Failure.LOCKED:
                    return LocalTransactionState.UNKNOWN
                if failure is Failure.CONFLICT:
                    continue
                if failure is not Failure.DUPLICATE:
                    raise
            else:
                return LocalTransactionState.ROLLBACK
            # In a transaction of its own, which sees what is committed by now.
            with database.transaction(wait) as local:
                found = self.verdict(local, transaction_id)
            if found is not None:
                return found
        return LocalTransactionState.UNKNOWN

    def verdict(self, local: LocalTransaction, transaction_id: str) -> LocalTransactionState | None:
        """What a row means, as this transaction sees it; None: there is none."""
        found = self.state(local, transaction_id)
        if found is None:
            return None
        return LocalTransactionState.COMMIT if found == COMMITTED else LocalTransactionState.ROLLBACK

    def identity(self, database: LocalDatabase) -> str:
        """Which table this is; names it at the first time."""
        return identity_of(
            database,
            self._own_identity,
            lambda local, name: local.execute(self._insert, id=IDENTITY, state=name),
        )

    def _own_identity(self, local: LocalTransaction) -> str | None:
        with asking_for(self.table.name, lambda: local.dialect):
            return self.state(local, IDENTITY)

    def is_whole(self, local: LocalTransaction, transaction_id: str) -> bool:
        """Whether what is about to be committed has the row.

        Raises:
            Exception: The transaction cannot go on, so that it is rolled back.
        """
        if local.is_doomed():
            return True  # Its commit() rolls back, and says so.
        known = local.is_whole()
        # A server that undid the transaction by itself, after a deadlock for example, undid the row as well.
        return self.state(local, transaction_id) == COMMITTED if known is None else known

    def outcome(self, local: LocalTransaction, transaction_id: str) -> LocalTransactionState | None:
        """Rolls a block back, and finds out what became of the transaction that had its row; None: unknown."""
        same = _is_same(local)
        try:
            local.rollback()
        except Exception as failure:
            text = "the local transaction %s could not be rolled back: %s"
            _log.warning(text, transaction_id, failure, extra={"transaction_id": transaction_id})
            return None
        try:
            local.begin()
            found = self.verdict(local, transaction_id)
            local.rollback()
        except Exception:
            # Inside of session.begin(), for example: nothing can run before that is left. A check tells.
            return None
        if found is None and same is False:
            # A COMMIT that the block's own code sent may still be on its way, on a connection that is lost.
            return None
        return LocalTransactionState.ROLLBACK if found is None else found

    def _another_table(self) -> ConfigurationError:
        msg = (
            f"the local transaction's table {self.table.name} is not the one that the fence looks at: give the fence "
            "and the block the same database. If it is the same: call create_tables() before the transaction begins; "
            "or, where a signal handler may have raised an exception while the connection was read, run the block "
            "again: such a connection is not used any more"
        )
        return ConfigurationError(msg, field="database")

    def _moved(self) -> ConfigurationError:
        msg = (
            f"a connection of the fence has another table {self.table.name}: somebody left it in another schema or "
            "database (USE, SET search_path) and gave it back to the pool. Name the table with its schema, "
            f"TransactionFence(engine, table='shop.{self.table.name.rpartition('.')[2]}') for example"
        )
        return ConfigurationError(msg, field="table")

    def between(self, local: LocalTransaction, after: str, before: str, identity: str) -> list[tuple[str, str]]:
        """Up to 500 rows between two ids, in their order: id and state; none where this is another table."""
        found = local.fetch(self._select_range, after=after, before=before, first=IDENTITY, identity=identity)
        return [(str(row[0]), str(row[1])) for row in found]

    def delete(self, local: LocalTransaction, transaction_ids: Sequence[str]) -> int:
        """Deletes rows by their keys, some at a time."""
        count, ordered = 0, sorted(transaction_ids)
        for begin in range(0, len(ordered), _DELETED_AT_ONCE):
            part = ordered[begin : begin + _DELETED_AT_ONCE]
            places = [f":id{number}" for number in range(len(part))]
            statement = local.dialect.delete_ids(self.table.name, "transaction_id", places)
            count += local.execute(statement, **{f"id{number}": each for number, each in enumerate(part)})
        return count


def _is_same(local: LocalTransaction) -> bool | None:
    try:
        return local.is_same()
    except Exception:
        return False


def age(transaction_id: str) -> float:
    """Seconds since an id was made, by this machine's clock."""
    return time.time() - int(transaction_id.replace("-", "")[:12], 16) / 1000


def id_of_age(seconds: float) -> str:
    """What ids that are older than so many seconds are smaller than."""
    text = f"{max(0, int((time.time() - seconds) * 1000)):012x}"
    return f"{text[:8]}-{text[8:]}-7000-8000-000000000000"
