"""What was delivered: a record for each message, and how far the comparison has come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from client_core.local_database import Column, Failure, Index, Kind, Table, asking_for
from client_core.times import from_micros, to_micros

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from client_core.local_database import LocalTransaction

__all__ = ["Record", "Records", "shortened"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HASHES_AT_ONCE = 200
_PAGE = 500
_LONGEST_VALUE = 16_384
"""Characters."""


def shortened(text: str) -> str:
    """What is recorded, and compared, of a value: a long one by its hash."""
    if len(text) <= _LONGEST_VALUE:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"{text[:100]}... ({len(text)} characters, sha256 {digest})"


@dataclass(frozen=True, slots=True)
class Record:
    """A message that was delivered.

    Attributes:
        key: The key of its row; None: it has none.
        message_id: Its identity.
        time: Its business time.
        values: What is compared, by name.
    """

    key: str | None
    message_id: str
    time: datetime
    values: Mapping[str, str | None]


class Records:
    """The tables' statements; all of one reconciliation's name."""

    def __init__(self, table_name: str, name: str, home: str = "") -> None:
        """Takes the name of the table, that of the reconciliation, and the schema of a table's name without one.

        Raises:
            ConfigurationError: The table's name is none.
        """
        self.name = name
        self.table = Table(
            table_name,
            (
                Column("record_id", Kind.WORD),
                Column("reconciliation", Kind.NAME),
                Column("key_hash", Kind.WORD),
                Column("business_key", Kind.TEXT, nullable=True),
                Column("message_id", Kind.NAME),
                Column("message_time", Kind.NUMBER),
                Column("compared", Kind.TEXT),
            ),
            indexes=(
                Index("keys", ("reconciliation", "key_hash")),
                Index("times", ("reconciliation", "message_time", "record_id")),
            ),
            home=home,
        )
        self.state = Table(
            f"{table_name}_state",
            (Column("reconciliation", Kind.NAME), Column("judged_until", Kind.NUMBER)),
            home=home,
        )
        table, state = self.table.path, self.state.path
        columns = ", ".join(column.name for column in self.table.columns)
        self._insert = f"INSERT INTO {table} ({columns}) VALUES (:id, :name, :hash, :key, :message, :time, :compared)"  # noqa: S608
        self._insert_state = f"INSERT INTO {state} (reconciliation, judged_until) VALUES (:name, :until)"  # noqa: S608
        self._update_state = (
            f"UPDATE {state} SET judged_until = :until"  # noqa: S608
            " WHERE reconciliation = :name AND judged_until < :until"
        )
        self._columns = "record_id, business_key, message_id, message_time, compared"

    def create(self, local: LocalTransaction) -> None:
        """Creates the tables where they do not exist."""
        self.table.create(local)
        self.state.create(local)

    def add(self, local: LocalTransaction, records: Iterable[Record]) -> None:
        """Notes messages; those that are noted already stay as they are."""
        for each in sorted(records, key=lambda record: record.message_id):
            _insert(
                local,
                self._insert,
                id=self._hash(each.message_id),
                name=self.name,
                hash=self._hash("" if each.key is None else f"={each.key}"),
                key=each.key,
                message=each.message_id,
                time=to_micros(each.time),
                compared=json.dumps(dict(each.values), ensure_ascii=False),
            )

    def by_key(self, local: LocalTransaction, keys: Sequence[str]) -> dict[str, list[Record]]:
        """The records of each key that has some, in the order of their times."""
        found: dict[str, list[Record]] = {}
        for start in range(0, len(keys), _HASHES_AT_ONCE):
            part = {
                f"h{number}": self._hash(f"={key}") for number, key in enumerate(keys[start : start + _HASHES_AT_ONCE])
            }
            listed = ", ".join(f":{name}" for name in part)
            rows = local.fetch(
                f"SELECT {self._columns} FROM {self.table.path}"  # noqa: S608
                f" WHERE reconciliation = :name AND key_hash IN ({listed})"
                f" ORDER BY message_time, message_id{local.dialect.no_limit}",
                name=self.name,
                **part,
            )
            for row in rows:
                record = _record(row)
                if record.key is not None:
                    found.setdefault(record.key, []).append(record)
        return found

    def between(
        self, local: LocalTransaction, start: datetime, end: datetime, after: tuple[int, str]
    ) -> list[tuple[int, str, Record]]:
        """A page of the records with times in [start, end), after a place (time, id); each with its place."""
        rows = local.fetch(
            f"SELECT {self._columns} FROM {self.table.path} WHERE reconciliation = :name"  # noqa: S608
            " AND message_time >= :start AND message_time < :until"
            " AND (message_time > :at OR (message_time = :at AND record_id > :after))"
            f" ORDER BY message_time, record_id LIMIT {_PAGE}",
            name=self.name,
            start=to_micros(start),
            until=to_micros(end),
            at=after[0],
            after=after[1],
        )
        return [(int(row[3]), str(row[0]), _record(row)) for row in rows]

    def delete_older(self, local: LocalTransaction, before: datetime) -> int:
        """Deletes some records with earlier times, by their keys; how many: others may have deleted them."""
        old = self.between(local, _EPOCH - timedelta(days=1), before, (-1 << 62, ""))
        delete = f"DELETE FROM {self.table.path} WHERE record_id = :id"  # noqa: S608
        return sum(local.execute(delete, id=each) for each in sorted(row_id for _, row_id, _ in old))

    def judged_until(self, local: LocalTransaction) -> datetime | None:
        """Where the last round ended."""
        with asking_for(self.state.path, lambda: local.dialect):
            rows = local.fetch(
                f"SELECT judged_until FROM {self.state.path} WHERE reconciliation = :name",  # noqa: S608
                name=self.name,
            )
        return from_micros(int(rows[0][0])) if rows else None

    def judge_until(self, local: LocalTransaction, until: datetime) -> None:
        """Notes where a round ended; rounds of several processes may overlap, and it never goes back."""
        values = {"name": self.name, "until": to_micros(until)}
        # No UPDATE first: of no row it locks a gap, and two first rounds that end at once would wait for each other.
        # Where an INSERT can pass over a row, it comes first: what has read on SQLite may find that it cannot write.
        if local.dialect.keep_existing or self.judged_until(local) is None:
            _insert(local, self._insert_state, **values)
        local.execute(self._update_state, **values)

    def _hash(self, text: str) -> str:
        return hashlib.sha256(f"{self.name}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32]


def _insert(local: LocalTransaction, statement: str, **values: object) -> None:
    """Inserts a row, unless there is one."""
    try:
        local.execute(statement + local.dialect.keep_existing, **values)
    except Exception as error:
        if local.dialect.failure_of(error) is not Failure.DUPLICATE:
            raise


def pages(records: Records, local: LocalTransaction, start: datetime, end: datetime) -> Iterator[list[Record]]:
    """All records with times in [start, end), in pages."""
    after = (-1 << 62, "")
    while found := records.between(local, start, end, after):
        yield [record for _, _, record in found]
        after = found[-1][:2]


def _record(row: tuple[object, ...]) -> Record:
    _, key, message_id, time, compared = row
    at = from_micros(int(str(time)))
    return Record(None if key is None else str(key), str(message_id), at, json.loads(str(compared)))
