"""The business table: its rows in a window, page by page, in the order of their times."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from client_core.errors import ConfigurationError
from client_core.local_database import Failure, first_line_of
from client_core.times import from_micros, to_micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from client_core.local_database import LocalDatabase, LocalTransaction

__all__ = ["BusinessRow", "BusinessTable"]

_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
_UTC = "+00:00"
_PAGE = 500
_KEYS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class BusinessRow:
    """A row.

    Attributes:
        key: Its key, as text.
        time: When it was written (UTC).
        values: The columns that messages are made of and compared with, by name.
    """

    key: str
    time: datetime
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BusinessTable:
    """A table whose rows have messages. Its parts are SQL of the database, written by you, not by your users.

    Attributes:
        name: The table, or a SELECT in brackets with an alias.
        key: Column or expression of the key; not NULL.
        time: Column or expression with the time when the row was written; an index on it lets the database find the
            window.
        columns: Columns or ``expression AS name`` to give to functions that make and compare messages.
        where: Only these rows have messages; None: all.
        time_unit: Unit of a numeric time since 1970: ``s``, ``ms`` or ``us``.
        time_zone: Zone of times that have none: ``UTC`` or an offset such as ``+02:00``. None: UTC, where the
            database's sessions are in UTC as well; elsewhere it has to be named. MySQL's TIMESTAMP and PostgreSQL's
            TIMESTAMPTZ have a zone. Texts have none, or are in UTC (``+00:00``).
    """

    name: str
    key: str = "id"
    time: str = "created_at"
    columns: Sequence[str] = ()
    where: str | None = None
    time_unit: str | None = None
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            ConfigurationError: Something is empty or unknown.
        """
        for field in ("name", "key", "time"):
            if not getattr(self, field):
                msg = f"{field} of the business table is SQL, not {getattr(self, field)!r}"
                raise ConfigurationError(msg, field=field)
        if isinstance(self.columns, str):
            msg = f"columns is a list of columns, such as [{self.columns!r}], not {self.columns!r}"
            raise ConfigurationError(msg, field="columns")
        if self.time_unit is not None and self.time_unit not in _UNITS:
            msg = f"time_unit is one of {', '.join(_UNITS)}, not {self.time_unit!r}"
            raise ConfigurationError(msg, field="time_unit")
        if self.time_zone is not None and _zone_of(self.time_zone) is None:
            msg = (
                f"time_zone is UTC or an offset such as +02:00, not {self.time_zone!r}; for a zone with summer time "
                "have the database convert it in time, such as CONVERT_TZ(created_at, 'Europe/Berlin', '+00:00') on "
                "MySQL with time_zone=\"UTC\", or created_at AT TIME ZONE 'Europe/Berlin' on PostgreSQL"
            )
            raise ConfigurationError(msg, field="time_zone")

    @property
    def column_names(self) -> list[str]:
        """The names under which a row has its values: the columns' own, or those after ``AS``."""
        return [each.rpartition(" ")[2].strip('"`') for each in self.columns]

    def rows(self, database: LocalDatabase, start: datetime, end: datetime) -> Iterator[list[BusinessRow]]:
        """Rows whose time is in [start, end), in pages.

        Raises:
            ConfigurationError: The time column is none, or the table cannot be read as it was described.
        """
        names = self.column_names
        listed = "".join(f", {each}" for each in self.columns)
        condition = f" AND ({self.where})" if self.where else ""
        head = f"SELECT {self.key}, {self.time}{listed} FROM {self.name} WHERE {self.key} IS NOT NULL{condition}"  # noqa: S608 - the user's own SQL
        order = f" ORDER BY {self.time}, {self.key} LIMIT {_PAGE}"
        first = f"{head} AND {self.time} >= :start AND {self.time} < :until{order}"
        further = f"({self.time} > :at OR ({self.time} = :at AND {self.key} > :after))"
        more = f"{head} AND {self.time} < :until AND {further}{order}"
        with database.reading() as local:
            self._try(local, f"{head} LIMIT :rows")
            write = self._writer(local)
        last: tuple[Any, ...] | None = None
        while True:
            with database.reading() as local, _in_zone(local, _UTC):
                if last is None:
                    found = local.fetch(first, start=write(start), until=write(end))
                else:
                    found = local.fetch(more, until=write(end), at=last[1], after=last[0])
            if found:
                last = found[-1]
                yield [
                    BusinessRow(_text(row[0]), self._read(row[1]), dict(zip(names, row[2:], strict=True)))
                    for row in found
                ]
            if len(found) < _PAGE:
                return

    def known(self, local: LocalTransaction, keys: Sequence[str]) -> set[str]:
        """Those keys that the table has, whatever its ``where``."""
        found: set[str] = set()
        sample = local.fetch(f"SELECT {self.key} FROM {self.name} WHERE {self.key} IS NOT NULL LIMIT 1")  # noqa: S608
        if not sample:
            return found
        # As the column's type: PostgreSQL compares no number with a text.
        typed = [value for key in keys if (value := _as_type_of(sample[0][0], key)) is not None]
        for start in range(0, len(typed), _KEYS_AT_ONCE):
            part = {f"k{number}": key for number, key in enumerate(typed[start : start + _KEYS_AT_ONCE])}
            listed = ", ".join(f":{name}" for name in part)
            statement = f"SELECT {self.key} FROM {self.name} WHERE {self.key} IN ({listed}){local.dialect.no_limit}"  # noqa: S608
            found |= {_text(row[0]) for row in local.fetch(statement, **part)}
        return found

    def _try(self, local: LocalTransaction, statement: str) -> None:
        try:
            # With a value: without one, a driver would take a % of the user's for a place.
            local.fetch(statement, rows=0)
        except Exception as error:
            if local.dialect.failure_of(error) not in {Failure.NO_TABLE, Failure.WRONG_SQL}:
                raise
            msg = (
                f"the business table cannot be read: {first_line_of(error)}; its name, key, time, columns and where "
                f"are SQL of this database, and make: {statement}"
            )
            raise ConfigurationError(msg, field="table") from error

    def _writer(self, local: LocalTransaction) -> Any:
        """How times are written for the database to compare, as the table's own times are."""
        if self.time_unit is not None:
            unit = _UNITS[self.time_unit]
            return lambda moment: -(-to_micros(moment) // unit)
        statement = f"SELECT {self.time}, {self.key} FROM {self.name} WHERE {self.time} IS NOT NULL LIMIT 1"  # noqa: S608
        ((sample, key),) = local.fetch(statement) or [(datetime(1970, 1, 1), None)]  # noqa: DTZ001
        if isinstance(sample, int | float):
            msg = f"{self.time} is a number; name its time_unit: one of {', '.join(_UNITS)}"
            raise ConfigurationError(msg, field="time_unit")
        if isinstance(sample, str):
            return self._writer_of_texts(sample)
        if isinstance(sample, datetime):
            if sample.tzinfo is not None:
                return lambda moment: moment
            if self.time_zone is None and key is not None:
                self._refuse_unknown_zone(local, sample, key)
            elif self._zone is not UTC and key is not None:
                self._refuse_second_zone(local, key)
            return lambda moment: moment.astimezone(self._zone).replace(tzinfo=None)
        msg = f"{self.time} is a {type(sample).__name__}, not a time"
        raise ConfigurationError(msg, field="time")

    def _writer_of_texts(self, sample: str) -> Any:
        """Texts are compared as texts, so that all of them are in one zone."""
        told = datetime.fromisoformat(sample)
        if told.utcoffset():
            msg = (
                f"{self.time} has texts with an offset, such as {sample!r}, which do not compare as their times do: "
                "have the database convert them, such as datetime(created_at) on SQLite, or write them in UTC"
            )
            raise ConfigurationError(msg, field="time")
        separator = "T" if "T" in sample else " "
        zone = UTC if told.tzinfo is not None else self._zone
        return lambda moment: (
            moment.astimezone(zone).replace(tzinfo=None).isoformat(sep=separator, timespec="microseconds")
        )

    def _refuse_second_zone(self, local: LocalTransaction, key: object) -> None:
        """Refuses a zone for times that have one: MySQL's TIMESTAMP, which differs from session to session."""
        if local.dialect.name == "mysql" and self._time_in(local, key, _UTC) != self._time_in(local, key, "+01:00"):
            msg = f"{self.time} has a time zone of its own (TIMESTAMP): leave time_zone out"
            raise ConfigurationError(msg, field="time_zone")

    def _time_in(self, local: LocalTransaction, key: object, zone: str) -> Any:
        """A row's time as a session in this zone has it; None: the row is gone."""
        statement = f"SELECT {self.time} FROM {self.name} WHERE {self.key} = :key AND {self.time} IS NOT NULL LIMIT 1"  # noqa: S608
        with _in_zone(local, zone):
            found = local.fetch(statement, key=key)
        return found[0][0] if found else None

    def _refuse_unknown_zone(self, local: LocalTransaction, sample: datetime, key: object) -> None:
        """Refuses times without a zone where sessions are not in UTC: they may be in either.

        Raises:
            ConfigurationError: They are.
        """
        offset = _offset(local)
        if not offset:
            return
        # One that has a zone is another in UTC: MySQL's TIMESTAMP.
        if self._time_in(local, key, _UTC) not in {None, sample}:
            return
        shown = _shown(offset)
        msg = (
            f"{self.time} has no time zone, and sessions of this database are at {shown}: say in which zone it is "
            f'written, time_zone="{shown}" or time_zone="UTC"'
        )
        raise ConfigurationError(msg, field="time_zone")

    @property
    def _zone(self) -> tzinfo:
        return _zone_of(self.time_zone or "UTC") or UTC

    def _read(self, value: Any) -> datetime:
        if self.time_unit is not None:
            return from_micros(round(value * _UNITS[self.time_unit]))
        read = datetime.fromisoformat(value) if isinstance(value, str) else value
        return (read.replace(tzinfo=self._zone) if read.tzinfo is None else read).astimezone(UTC)


@contextlib.contextmanager
def _in_zone(local: LocalTransaction, zone: str) -> Iterator[None]:
    """MySQL compares and gives its TIMESTAMP in the session's time zone, in which an hour may come twice each year."""
    if local.dialect.name != "mysql":
        yield
        return
    ((before,),) = local.fetch("SELECT @@session.time_zone")
    local.execute(f"SET time_zone = '{zone}'")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            local.execute(f"SET time_zone = '{before}'")


def _offset(local: LocalTransaction) -> int:
    """Seconds by which the session's time is ahead of UTC."""
    queries = {
        "mysql": "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW()) * 60",
        "postgresql": "SELECT EXTRACT(TIMEZONE FROM now())",
    }
    query = queries.get(local.dialect.name)
    return int(local.fetch(query)[0][0]) if query else 0


def _shown(offset: int) -> str:
    hours, minutes = divmod(abs(offset) // 60, 60)
    return f"{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}"


def _zone_of(text: object) -> tzinfo | None:
    """The zone of a text; None: it is neither UTC nor an offset."""
    if not isinstance(text, str):
        return None
    found = re.fullmatch(r"([+-])(\d\d):(\d\d)", text)
    if found is None or int(found[2]) > 14 or int(found[3]) > 59:
        return UTC if text == "UTC" else None
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return timezone(-offset if found[1] == "-" else offset)


def _text(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def _as_type_of(sample: Any, key: str) -> Any:
    """A key as the table's own keys are; None: it can be none of them."""
    try:
        if isinstance(sample, bytes):
            return bytes.fromhex(key)
        if isinstance(sample, int) and not isinstance(sample, bool):
            return int(key) if abs(int(key)) < 1 << 63 else None
        if isinstance(sample, Decimal | UUID):
            return type(sample)(key)
    except (ArithmeticError, ValueError):
        return None
    return key
