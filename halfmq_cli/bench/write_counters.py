"""What a server of the MySQL family wrote, by its own counters, and how large its indexes are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeAlias

from broker.errors import ConfigurationError
from broker.storage.engine.connection import Database

Counts: TypeAlias = "dict[str, int | None]"
"""By figure; None where the server does not count that."""

# The first variable that the server has. MariaDB 10.11 counts rows of a storage engine by handler calls only.
_STATUS = {
    "rows_inserted": ("Innodb_rows_inserted", "Handler_write"),
    "rows_updated": ("Innodb_rows_updated", "Handler_update"),
    "rows_deleted": ("Innodb_rows_deleted", "Handler_delete"),
    "commits": ("Com_commit",),
    "redo_bytes": ("Innodb_redo_log_current_lsn", "Innodb_lsn_current"),
    "redo_written_bytes": ("Innodb_os_log_written",),
    "redo_syncs": ("Innodb_os_log_fsyncs",),
    "data_written_bytes": ("Innodb_data_written",),
    "data_syncs": ("Innodb_data_fsyncs",),
    "page_bytes": ("Innodb_pages_written",),
    "doublewrite_bytes": ("Innodb_dblwr_pages_written",),
    "binlog_bytes": ("Binlog_bytes_written",),
}
# Counted in pages.
_PAGES = {"page_bytes", "doublewrite_bytes"}
FIGURES = (*_STATUS,)

_NAMES = ", ".join(f"'{name}'" for names in _STATUS.values() for name in names)
_READ = f"SHOW GLOBAL STATUS WHERE Variable_name IN ({_NAMES}, 'Innodb_page_size', 'Innodb_history_list_length')"
_HISTORY = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
_BY_TABLE = (
    "SELECT OBJECT_NAME, COUNT_INSERT, COUNT_UPDATE, COUNT_DELETE"
    " FROM performance_schema.table_io_waits_summary_by_table WHERE OBJECT_SCHEMA = DATABASE()"
)
_TABLES = (
    "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'"
)
_INDEXES = (
    "SELECT table_name, index_name, stat_name, stat_value FROM mysql.innodb_index_stats"
    " WHERE database_name = DATABASE() AND stat_name IN ('size', 'n_leaf_pages')"
)
# Seconds to wait at most until deleted rows are removed from their indexes.
_PURGING = 60.0
_CALM = 0.5
_LOOK_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Written:
    """State of the counters.

    Attributes:
        counts: of the whole server.
        binlog: name and size in bytes of each file of the binary log, in order; None: there is no log.
        rows: by table of this database the rows inserted, updated and deleted; None: the server does not count them.
    """

    counts: Counts
    binlog: dict[str, int] | None
    rows: dict[str, tuple[int, int, int]] | None

    def since(self, before: Written) -> Counts:
        """What was counted since another state."""
        grown: Counts = {}
        for name, value in self.counts.items():
            earlier = before.counts[name]
            grown[name] = None if value is None or earlier is None else value - earlier
        if grown["binlog_bytes"] is None:
            grown["binlog_bytes"] = self._binlog_since(before)
        return grown

    def _binlog_since(self, before: Written) -> int | None:
        """Bytes by the sizes of files; None if files of that time are gone, or there is no log."""
        if self.binlog is None or not before.binlog:
            return None
        last = list(before.binlog)[-1]
        if last not in self.binlog:
            return None
        return sum(size for name, size in self.binlog.items() if name >= last) - before.binlog[last]

    def rows_since(self, before: Written) -> dict[str, tuple[int, int, int]] | None:
        """Rows inserted, updated and deleted since another state, by table, without tables that have none."""
        if self.rows is None or before.rows is None:
            return None
        grown = {}
        for table, now in self.rows.items():
            inserted, updated, deleted = before.rows.get(table, (0, 0, 0))
            changed = (now[0] - inserted, now[1] - updated, now[2] - deleted)
            if any(changed):
                grown[table] = changed
        return grown


class WriteCounters:
    """Reads the counters of a server, which counts for all its users: nothing else should use it meanwhile."""

    def __init__(self, url: str) -> None:
        """Connects.

        Raises:
            ConfigurationError: An embedded database has no server that counts.
        """
        self._database = Database(url)
        if self._database.dialect.one_writer:
            self._database.close()
            raise ConfigurationError(
                "An embedded database is part of the broker; there is no server that counts: name one.",
                field="database",
            )
        self._session = self._database.session(reading=True)
        settings = dict(
            self._session.fetch("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'performance_schema')")
        )
        self._has_binlog = settings.get("log_bin") == "ON"
        self._has_schema = settings.get("performance_schema") == "ON"
        self._tables = [str(name) for (name,) in self._session.fetch(_TABLES)]

    def close(self) -> None:
        """Closes the connection."""
        self._database.release(self._session)
        self._database.close()

    def settings(self) -> dict[str, str]:
        """Settings of the server that decide what is written."""
        names = (
            "innodb_buffer_pool_size",
            "innodb_flush_log_at_trx_commit",
            "innodb_doublewrite",
            "innodb_page_size",
            "log_bin",
            "binlog_format",
            "binlog_row_image",
            "sync_binlog",
        )
        listed = ", ".join(f"'{name}'" for name in names)
        return dict(self._session.fetch(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})"))

    def settled(self) -> Written:
        """The counters, once everything that was changed is written.

        Deleted rows are removed from their indexes before, which is part of the cost of deleting them, and each page of
        the tables that was changed is written once. Pages of the undo log are left to the server.
        """
        self._await_purge()
        self._session.run(f"FLUSH TABLES {', '.join(self._tables)} FOR EXPORT")
        self._session.run("UNLOCK TABLES")
        return self._read()

    def _await_purge(self) -> None:
        """Waits until no more is removed: a server may keep the last few for long."""
        until = time.monotonic() + _PURGING
        least, still = self._history(), 0.0
        while least and still < _CALM and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
            now = self._history()
            still = 0.0 if now < least else still + _LOOK_EVERY
            least = min(least, now)

    def _history(self) -> int:
        """Changes of rows that are to be removed."""
        status = dict(self._session.fetch(_READ))
        if "Innodb_history_list_length" in status:
            return int(status["Innodb_history_list_length"])
        return int(self._session.fetch(_HISTORY)[0][0])

    def _read(self) -> Written:
        status = {str(name): int(value) for name, value in self._session.fetch(_READ)}
        counts: Counts = {}
        for figure, names in _STATUS.items():
            value = next((status[name] for name in names if name in status), None)
            counts[figure] = value if value is None or figure not in _PAGES else value * status["Innodb_page_size"]
        if not self._has_binlog:
            counts["binlog_bytes"] = None
        files = self._session.fetch("SHOW BINARY LOGS") if self._has_binlog else None
        rows = self._session.fetch(_BY_TABLE) if self._has_schema else None
        return Written(
            counts,
            None if files is None else {str(name): int(size) for name, size, *_ in files},
            None if rows is None else {str(table): (int(i), int(u), int(d)) for table, i, u, d in rows},
        )

    def index_bytes(self) -> dict[str, dict[str, int | None]]:
        """By `table.index`: bytes of the leaf pages, and of all pages that the index has, empty ones too.

        MariaDB 10.11 does not know the leaf pages of some indexes, and says that there is one: None.
        """
        self._session.fetch(f"ANALYZE TABLE {', '.join(self._tables)}")
        page = int(self._session.fetch("SELECT @@GLOBAL.innodb_page_size")[0][0])
        pages: dict[str, dict[str, int]] = {}
        for table, index, statistic, count in self._session.fetch(_INDEXES):
            pages.setdefault(f"{table}.{index}", {})[str(statistic)] = int(count)
        return {
            name: {
                "leaf_bytes": None if found["n_leaf_pages"] == 1 < found["size"] else found["n_leaf_pages"] * page,
                "reserved_bytes": found["size"] * page,
            }
            for name, found in sorted(pages.items())
        }
