"""Messages of rows: what happened, the images before and after it, where it came from, and the schema of the row."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from halfmq.v1.message_pb2 import Message
from halfmq_connect.cdc.errors import CannotFollow, WrongSetting
from halfmq_connect.cdc.ids import row_group

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from halfmq_connect.cdc.binlog.rows import Change
    from halfmq_connect.cdc.binlog.table_map import TableMap
    from halfmq_connect.cdc.binlog.transactions import Began
    from halfmq_connect.cdc.config import CdcSettings, TableSettings

__all__ = ["Converter", "RowPlan", "TableChoice", "encode"]

_PLANS = 1000
"""How many tables' plans are kept; another one is made anew when it is needed."""
_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class TableChoice:
    """Which tables are published, and how."""

    def __init__(self, settings: CdcSettings) -> None:
        """Takes the settings."""
        self._settings = settings
        self.of = lru_cache(maxsize=10_000)(self._of)

    def _of(self, database: str, table: str) -> TableSettings | None:
        """The first section that matches a table; that of the outbox has none."""
        if self.is_outbox(database, table):
            return None
        name = f"{database}.{table}"
        return next((each for each in self._settings.tables if fnmatchcase(name, _glob(each.match))), None)

    def is_outbox(self, database: str, table: str) -> bool:
        """Whether it is the table whose rows are messages."""
        return self._settings.outbox is not None and f"{database}.{table}" == self._settings.outbox.table

    def wants(self, database: str, table: str) -> bool:
        """Whether rows of a table are published."""
        return self.of(database, table) is not None or self.is_outbox(database, table)

    def leaves_out(self, database: str, table: str, names: Sequence[str], key: Sequence[int]) -> Set[str]:
        """Columns of a table that are not published."""
        how = self.of(database, table)
        if how is None:
            return set()
        return set(names) - _kept(how, names, key)

    def names_wanted(self, text: str, database: str) -> bool:
        """Whether a statement may change such a table: it has the table's name, or none is known."""
        patterns = [each.match for each in self._settings.tables]
        patterns += [self._settings.outbox.table] if self._settings.outbox else []
        names = [pattern.split(".")[1] for pattern in patterns]
        return any("*" in name or name.lower() in text.lower() for name in names)


def _kept(how: TableSettings, names: Sequence[str], key: Sequence[int]) -> set[str]:
    """The columns that are published, of those with these names."""
    return set(how.columns or names) - set(how.exclude_columns) | {names[index] for index in key}


def _glob(pattern: str) -> str:
    """Only the asterisk has a meaning."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


class RowPlan:
    """How the rows of a table, as it is now, become messages."""

    def __init__(
        self, database: str, table: str, columns: Sequence[tuple[str, str]], key: Sequence[int], how: TableSettings
    ) -> None:
        """Chooses the columns.

        Raises:
            CannotFollow: The table has no primary key, or lacks a column that is to be published.
        """
        self.table = f"{database}.{table}"
        self._by_row = how.order == "row"
        if not key:
            msg = (
                f"{self.table} has no primary key, by which its rows are told apart: add one, or exclude the table."
                " Nothing was skipped"
            )
            raise CannotFollow(msg)
        names = [name for name, _ in columns]
        if missing := [
            name for name in (*how.columns, *how.exclude_columns) if name not in names and "*" not in how.match
        ]:
            msg = f"{self.table} has no column {', '.join(missing)}; correct the file"
            raise CannotFollow(msg)
        kept = _kept(how, names, key)
        self.chosen = [(index, name) for index, name in enumerate(names) if name in kept]
        self.whole = [name for _, name in self.chosen] if len(self.chosen) == len(names) else None
        self.key = list(key)
        self._number = key[0] if len(key) == 1 and columns[key[0]][1].partition(" ")[0] in _INTEGERS else None
        self._bare = {each: Message(topic=how.topic, tag=each, properties={"table": self.table}) for each in "cudr"}
        if how.order == "table":
            for each in self._bare.values():
                each.message_group = row_group(self.table, "")
        self.schema = encode(
            {"columns": {name: kind for name, kind in columns if name in kept}, "key": [names[index] for index in key]}
        )
        self.place = encode({"database": database, "table": table})[1:-1]

    def image(self, row: Sequence[Any] | None) -> str:
        """The JSON of a row."""
        if row is None:
            return "null"
        if self.whole is not None:
            return encode(dict(zip(self.whole, row, strict=True)))
        return encode({name: row[index] for index, name in self.chosen})

    def key_text(self, row: Sequence[Any] | None) -> str:
        """The primary key of a row, as JSON."""
        if row is None:
            return ""
        if self._number is not None:
            return f"[{row[self._number]}]"
        return encode([row[index] for index in self.key])

    def message(self, op: str, before: str, after: str, source: str, key: str) -> Message:
        """A message; its order goes by the primary key."""
        told = f'"source":{{{self.place},{source}}},"schema":{self.schema}'
        message = Message()
        message.CopyFrom(self._bare[op])
        message.body = f'{{"op":"{op}","before":{before},"after":{after},{told}}}'.encode()
        if self._by_row:
            message.message_group = row_group(self.table, key)
        return message


def moment(micros: int) -> str:
    """A time in ISO 8601, UTC."""
    seconds, rest = divmod(micros, 1_000_000)
    return f"{_second(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=1000)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


class Converter:
    """Turns changed rows into messages; numbers the rows of a transaction."""

    def __init__(self, settings: CdcSettings, kind: str, choice: TableChoice) -> None:
        """Takes the settings, and `mysql` or `mariadb`."""
        self._server = encode({"name": settings.name, "server": kind})[1:-1]
        self._choice = choice
        self._plans: dict[str, tuple[TableMap, RowPlan]] = {}
        self._source = ""
        self._row = 0

    def begin(self, began: Began) -> None:
        """A transaction begins."""
        gtid, committed_at = began.gtid.text, moment(began.committed_at)
        self._source = (
            f'{self._server},"server_id":{began.server_id},"gtid":"{gtid}","committed_at":"{committed_at}"'
            f',"file":{encode(began.file)}'
        )
        self._row = 0

    def source(self, place: int) -> str:
        """Where the next message comes from; counts it."""
        self._row += 1
        return f'{self._source},"position":{place},"row":{self._row - 1}'

    def changed(self, table: TableMap, change: Change, place: int) -> list[Message]:
        """The messages of a changed row: one, or two when its primary key changed."""
        op, before, after = change
        plan = self._plan(table)
        old, new = plan.image(before), plan.image(after)
        old_key, new_key = plan.key_text(before), plan.key_text(after)
        if op == "u" and old_key != new_key:
            # The row with the old key is gone, and one with the new key is there: each in the order of its own key.
            return [
                plan.message("d", old, "null", self.source(place), old_key),
                plan.message("c", "null", new, self.source(place), new_key),
            ]
        return [plan.message(op, old, new, self.source(place), old_key if op == "d" else new_key)]

    def truncated(self, database: str, table: str, place: int) -> list[Message]:
        """The message of an emptied table."""
        how = self._choice.of(database, table)
        if how is None:
            return []
        told = encode({"database": database, "table": table})[1:-1]
        body = f'{{"op":"t","before":null,"after":null,"source":{{{told},{self.source(place)}}},"schema":null}}'
        message = Message(topic=how.topic, body=body.encode(), tag="t", properties={"table": f"{database}.{table}"})
        if how.order != "none":
            message.message_group = row_group(f"{database}.{table}", "")
        return [message]

    def _plan(self, table: TableMap) -> RowPlan:
        known = self._plans.get(table.name)
        if known is None or known[0] is not table:
            while len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            how = self._choice.of(table.database, table.table)
            if how is None:
                raise WrongSetting(f"{table.database}.{table.table} matches no section", field="table")
            columns = [(column.name, column.type) for column in table.columns]
            known = self._plans[table.name] = (table, RowPlan(table.database, table.table, columns, table.key, how))
        return known[1]
