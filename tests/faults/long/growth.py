"""What grows: memory of brokers, rows and bytes of tables, the history list; looked at every few seconds."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from support.databases import connect
from support.memory import MIB, resident

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pymysql.cursors import Cursor

LOOKS = 360
"""In all, if they are a second apart at least."""
EXPIRING = {
    "op_record": "decided_at",
    "delivery_event": "happened_at",
    "audit_record": "happened_at",
    "sink_transaction": "prepared_at",
}
"""Tables whose rows have a time of their own, and are kept for some time."""


class Look(NamedTuple):
    """At a time in seconds: bytes of each broker, rows and bytes of each table, and the server's own figures.

    `oldest` is the age of the oldest row of a table in seconds.
    """

    at: float
    memory: Sequence[int]
    rows: Mapping[str, int]
    sizes: Mapping[str, int]
    oldest: Mapping[str, float]
    history: int
    undo: int


class Thirds(NamedTuple):
    """Averages of the first and the last third of some looks."""

    first: float
    last: float


@dataclass(slots=True)
class Growth:
    """Looks from a thread of its own."""

    database: str
    pids: Sequence[int]
    seconds: float
    looks: list[Look] = field(default_factory=list)
    error: BaseException | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="growth", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(60)

    def since(self, warm: float) -> list[Look]:
        """The looks from some seconds after the first one on."""
        return [each for each in self.looks if each.at - self.looks[0].at >= warm] or self.looks

    def slopes(self, warm: float) -> list[float]:
        """MiB a minute of each broker, by least squares."""
        looks = self.since(warm)
        return [
            round(60 * slope([each.at for each in looks], [each.memory[number] / MIB for each in looks]), 3)
            for number in range(len(self.pids))
        ]

    def thirds(self, warm: float, of: Callable[[Look], float]) -> Thirds:
        """Averages of a figure after the warm-up."""
        looks = self.since(warm)
        third = max(1, len(looks) // 3)
        return Thirds(fmean(of(each) for each in looks[:third]), fmean(of(each) for each in looks[-third:]))

    def by_minute(self, number: int) -> list[float]:
        """MiB of a broker, minute by minute."""
        found: dict[int, float] = {}
        for each in self.looks:
            found.setdefault(int(each.at - self.looks[0].at) // 60, round(each.memory[number] / MIB, 1))
        return list(found.values())

    def _watch(self) -> None:
        try:
            with closing(connect(self.database, autocommit=True)) as own, own.cursor() as cursor:
                while True:
                    self.looks.append(look(cursor, self.pids))
                    if self._stopping.wait(max(1.0, self.seconds / LOOKS)):
                        return
        except BaseException as error:
            self.error = error


def look(cursor: Cursor, pids: Sequence[int]) -> Look:
    """What there is now."""
    return Look(
        time.monotonic(),
        [resident(pid) for pid in pids],
        rows_of(cursor),
        sizes_of(cursor),
        ages_of(cursor),
        *_of_server(cursor),
    )


def rows_of(cursor: Cursor) -> dict[str, int]:
    """Rows of all tables that have any."""
    tables = _fetch(
        cursor,
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
        " AND TABLE_TYPE = 'BASE TABLE'",
    )
    counts = {str(name): int(_fetch(cursor, f"SELECT COUNT(*) FROM `{name}`")[0][0]) for (name,) in tables}
    return {name: count for name, count in sorted(counts.items()) if count}


def sizes_of(cursor: Cursor) -> dict[str, int]:
    """Bytes of the files of all tables."""
    spaces = "INNODB_SYS_TABLESPACES" if _is_mariadb(cursor) else "INNODB_TABLESPACES"
    found = _fetch(
        cursor,
        f"SELECT NAME, FILE_SIZE FROM information_schema.{spaces} WHERE NAME LIKE CONCAT(DATABASE(), '/%')",
    )
    return {re.sub("^.*/", "", str(name)): int(size) for name, size in found}


def ages_of(cursor: Cursor) -> dict[str, float]:
    """Seconds that the oldest row of each table has been there."""
    ages = {}
    for table, column in EXPIRING.items():
        ((oldest,),) = _fetch(cursor, f"SELECT MIN({column}) FROM {table}")
        if oldest is not None:
            ages[table] = time.time() - int(oldest) / 1e6
    return ages


def index_sizes(cursor: Cursor) -> dict[str, int]:
    """Bytes of the pages of each index, once its statistics are made anew."""
    names = [
        row[0]
        for row in _fetch(
            cursor,
            "SELECT TABLE_NAME FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'",
        )
    ]
    _fetch(cursor, f"ANALYZE TABLE {', '.join(names)}")
    found = _fetch(
        cursor,
        "SELECT table_name, index_name, stat_value * @@GLOBAL.innodb_page_size FROM mysql.innodb_index_stats"
        " WHERE database_name = DATABASE() AND stat_name = 'size'",
    )
    return {f"{table}.{index}": int(size) for table, index, size in found}


def _is_mariadb(cursor: Cursor) -> bool:
    return "mariadb" in str(_fetch(cursor, "SELECT VERSION()")[0][0]).lower()


def _of_server(cursor: Cursor) -> tuple[int, int]:
    """Length of the history list; bytes of the undo tablespaces, or of the system tablespace where undo is in it."""
    ((history,),) = _fetch(
        cursor, "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
    )
    spaces = "INNODB_SYS_TABLESPACES" if _is_mariadb(cursor) else "INNODB_TABLESPACES"
    found = _fetch(
        cursor,
        f"SELECT COALESCE(SUM(FILE_SIZE), 0) FROM information_schema.{spaces}"
        " WHERE NAME LIKE '%undo%' OR NAME = 'innodb_system'",
    )
    return int(history), int(found[0][0])


def _fetch(cursor: Cursor, query: str) -> Sequence[tuple[Any, ...]]:
    cursor.execute(query)
    return list(cursor.fetchall())


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Of the line with the least squares; per second."""
    if len(times) < 2:
        return 0.0
    middle, average = fmean(times), fmean(values)
    spread = sum((each - middle) ** 2 for each in times)
    return sum((at - middle) * (value - average) for at, value in zip(times, values, strict=True)) / spread


def table_of(looks: Sequence[Look]) -> list[str]:
    """A few of the looks as lines."""
    step = max(1, len(looks) // 12)
    lines = ["seconds  memory (MiB)     rows  message  op_record  events  topics   MiB  history  undo MiB"]
    for each in looks[::step]:
        memory = " ".join(f"{bytes_ / MIB:6.1f}" for bytes_ in each.memory)
        counts = defaultdict(int, each.rows)
        lines.append(
            f"{each.at - looks[0].at:7.0f}  {memory}  {sum(counts.values()):7} {counts['message']:8}"
            f" {counts['op_record']:10} {counts['delivery_event']:7} {counts['topic']:7}"
            f" {sum(each.sizes.values()) / MIB:5.0f} {each.history:8} {each.undo / MIB:9.0f}"
        )
    return lines
