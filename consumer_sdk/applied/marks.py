"""The table of marks: a row for each effect, written in the transaction of the effect.

Two consumers that apply the same thing at once meet at the row's key: the second waits for the first one's transaction,
and then finds the mark, or that it may go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_core.local_database import Column, Failure, Index, Kind, Table, asking_for, storable
from consumer_sdk.applied.keys import mark_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_core.local_database import LocalTransaction
    from client_core.stored import StoredMessage

__all__ = ["Mark", "Marks"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that may be deleted.

    Attributes:
        mark_id: Its key.
        applied_at: When it was written, in microseconds since 1970 (UTC, time of the database).
        topic: Topic of its message.
        queue: Queue of its message.
        offset: Offset of its message.
    """

    mark_id: str
    applied_at: int
    topic: str
    queue: int
    offset: int


class Marks:
    """The table's statements."""

    def __init__(self, name: str, group: str, home: str = "") -> None:
        """Takes the table's name, the group whose marks these are, and the schema of a name without one.

        Raises:
            ConfigurationError: The table's name is none.
        """
        self.table = Table(
            name,
            (
                Column("mark_id", Kind.WORD),
                Column("consumer_group", Kind.NAME),
                Column("business_key", Kind.TEXT),
                Column("message_id", Kind.NAME),
                Column("topic", Kind.NAME),
                Column("queue_no", Kind.NUMBER),
                Column("log_offset", Kind.NUMBER),
                Column("applied_at", Kind.NUMBER),
            ),
            indexes=(Index("applied", ("consumer_group", "applied_at")),),
            home=home,
        )
        self.group = group
        table = self.table.path
        columns = ", ".join(column.name for column in self.table.columns)
        values = ":id, :consumers, :business_key, :message, :topic, {queue}, :place"
        self._insert = f"INSERT INTO {table} ({columns}) VALUES ({values}, "  # noqa: S608 - a checked name
        self._select = f"SELECT message_id FROM {table} WHERE mark_id = :id"  # noqa: S608
        self._old = (
            f"SELECT mark_id, applied_at, topic, queue_no, log_offset FROM {table}"  # noqa: S608
            " WHERE consumer_group = :consumers AND applied_at >= :since AND applied_at <= "
        )
        self._take_back = f"DELETE FROM {table} WHERE mark_id = :id AND message_id = :message"  # noqa: S608
        self._delete = f"DELETE FROM {table} WHERE mark_id = :id AND applied_at = :applied_at"  # noqa: S608

    def put(self, local: LocalTransaction, message: StoredMessage, key: str, wait: float | None = None) -> bool:
        """Marks an effect in the transaction that makes it.

        Args:
            local: The transaction.
            message: What asks for the effect.
            key: Its business key.
            wait: Seconds to wait for another transaction that has the mark, on PostgreSQL; None: as it is set.

        Returns:
            Whether it is the first time; otherwise the effect is in the database, and committed.

        Raises:
            Exception: The database's own, for example because another transaction held the mark for too long.
        """
        queue, end = (":queue", "") if wait is None else local.dialect.wait_in_insert(":queue", wait)
        try:
            with asking_for(self.table.path, lambda: local.dialect):
                changed = local.execute(
                    f"{self._insert.format(queue=queue)}{local.dialect.now}){local.dialect.keep_existing}{end}",
                    id=mark_id(self.group, key),
                    consumers=self.group,
                    business_key=storable(key),
                    message=message.message_id,
                    topic=message.topic,
                    queue=message.queue,
                    place=message.offset,
                )
        except Exception as error:
            if local.dialect.failure_of(error) is not Failure.DUPLICATE:
                raise
            return False
        return changed != 0

    def take_back(self, local: LocalTransaction, message: StoredMessage, key: str) -> None:
        """Deletes the mark of a message that was not applied."""
        local.execute(self._take_back, id=mark_id(self.group, key), message=message.message_id)

    def has(self, local: LocalTransaction, message: StoredMessage, key: str) -> bool:
        """Whether the transaction has the mark of this message."""
        rows = local.fetch(self._select, id=mark_id(self.group, key))
        return bool(rows) and str(rows[0][0]) == message.message_id

    def older(self, local: LocalTransaction, keep: float, since: int, limit: int) -> list[Mark]:
        """Marks that were written so many seconds ago or earlier, and not before ``since``, oldest first."""
        rows = local.fetch(
            f"{self._old}{local.dialect.now} - :keep ORDER BY applied_at LIMIT {limit:d}",
            consumers=self.group,
            since=since,
            keep=round(keep * 1e6),
        )
        return [Mark(str(row[0]), int(row[1]), str(row[2]), int(row[3]), int(row[4])) for row in rows]

    def delete(self, local: LocalTransaction, marks: Sequence[Mark]) -> int:
        """Deletes marks, each by its key; how many."""
        return sum(
            local.execute(self._delete, id=each.mark_id, applied_at=each.applied_at)
            for each in sorted(marks, key=lambda mark: mark.mark_id)
        )
