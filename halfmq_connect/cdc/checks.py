"""At the door: what a server must have and a user may do, before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmq_connect.cdc.database import quoted
from halfmq_connect.cdc.errors import CannotFollow, Interrupted, WrongSetting
from halfmq_connect.cdc.snapshot.values import ordered_key
from halfmq_connect.cdc.tables import described

if TYPE_CHECKING:
    from halfmq_connect.cdc.config import CdcSettings
    from halfmq_connect.cdc.database import Source
    from halfmq_connect.cdc.messages import TableChoice
    from halfmq_connect.cdc.positions import Position
    from halfmq_connect.cdc.tables import DescribedTable

__all__ = ["check_position", "check_server", "check_tables"]

_WANTED = {
    "log_bin": ("ON", "the binary log is off: start the server with --log-bin"),
    "binlog_format": ("ROW", "the log has statements: set binlog_format=ROW, and begin new sessions"),
    "binlog_row_image": ("FULL", "the log lacks columns: set binlog_row_image=FULL, and begin new sessions"),
    "binlog_row_metadata": ("FULL", "the log does not name columns: set binlog_row_metadata=FULL"),
}
_MYSQL = {
    "gtid_mode": ("ON", "transactions have no ids: set enforce_gtid_consistency=ON, then gtid_mode=ON step by step"),
    "binlog_transaction_compression": ("OFF", "compressed transactions are not read: set it OFF"),
    "binlog_row_value_options": ("", "partial JSON updates are not read: set it to the empty text"),
}
_MARIADB = {"log_bin_compress": ("OFF", "compressed events are not read: set it OFF")}


def check_server(source: Source) -> None:
    """Looks at the server's settings and the user's rights.

    Raises:
        WrongSetting: Names what to change.
    """
    wanted = _WANTED | (_MARIADB if source.mariadb else _MYSQL)
    found = source.variables(*wanted, "server_id", "log_replica_updates", "log_slave_updates")
    for name, (value, remedy) in wanted.items():
        # A server that lacks one of the newer variables does what its absence says.
        own = found.get(name, "" if name == "binlog_row_value_options" else "OFF")
        if own.upper() != value:
            raise WrongSetting(f"{source.host} has {name}={own or 'nothing'}; {remedy}", field=name)
    if int(found.get("server_id", 0)) == source.settings.server_id:
        msg = f"{source.settings.server_id} is {source.host}'s own; choose a number that no server has"
        raise WrongSetting(msg, field="database.server_id")
    _check_rights(source)


def _check_rights(source: Source) -> None:
    """Asks for what the rights allow; reading the log itself has no harmless question, so the grants are read."""
    grants = " ".join(str(row[0]).upper() for row in source.ask("SHOW GRANTS"))
    names = ("REPLICATION SLAVE", "REPLICATION REPLICA", "ALL PRIVILEGES ON *.*")
    if not any(name in grants for name in names) and "GRANT `" not in grants:
        msg = (
            f"{source.settings.user} may not read the log: GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO"
            f" '{source.settings.user}'@'...'"
        )
        raise WrongSetting(msg, field="database.user")


def check_tables(source: Source, settings: CdcSettings, choice: TableChoice) -> list[DescribedTable]:
    """Looks at the tables; returns those that are there.

    Raises:
        WrongSetting: One is missing, cannot be read, has no primary key, or changes without a trace in the log.
    """
    found = described(source, choice)
    names = {table.name for table in found}
    for index, section in enumerate(settings.tables):
        if "*" not in section.match and section.match not in names:
            msg = f"there is no table {section.match} on {source.host}, or {source.settings.user} may not read it"
            raise WrongSetting(msg, field=f"table[{index}].match")
    if settings.outbox and settings.outbox.table not in names:
        msg = f"there is no table {settings.outbox.table} on {source.host}; `halfmq cdc --outbox-sql` shows its form"
        raise WrongSetting(msg, field="outbox.table")
    for table in found:
        try:
            source.ask(f"SELECT 1 FROM {quoted(table.database, table.table)} LIMIT 0")
        except CannotFollow as error:
            raise WrongSetting(f"{table.name} cannot be read: {error}", field="database.user") from None
        how = choice.of(table.database, table.table)
        if how is None or how.snapshot:
            ordered_key(table)
        if how is not None and not how.accept_cascades:
            _check_cascades(source, table)
    return found


def _check_cascades(source: Source, table: DescribedTable) -> None:
    if not source.mariadb and source.number >= (9, 6):  # MySQL writes them to the log since then.
        return
    rules = source.ask(
        "SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s"
        " AND TABLE_NAME = %s AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))",
        (table.database, table.table),
    )
    if rules:
        msg = (
            f"the foreign key {rules[0][0]} of {table.name} changes rows inside of the storage engine, which leaves no"
            " trace in the log; use RESTRICT and change the rows by statements, or set accept_cascades = true and do"
            " without them"
        )
        raise WrongSetting(msg, field="table.accept_cascades")


def check_position(source: Source, position: Position) -> None:
    """Looks whether the server can go on from a position.

    Raises:
        CannotFollow: The log before is purged already.
        Interrupted: The server lacks what was read before: it is behind.
    """
    own = str(position)
    if source.mariadb:
        missing = "" if source.executed().covers(position) else own
    else:
        purged = source.subtract(str(source.ask("SELECT @@GLOBAL.gtid_purged")[0][0]).replace("\n", ""), own)
        if purged:
            msg = (
                f"{source.host} has purged transactions that were not read yet: {purged}. Nothing was skipped. Name a"
                " server that has them, or take a new snapshot (--new-snapshot), and keep the log for longer"
                " (binlog_expire_logs_seconds)"
            )
            raise CannotFollow(msg)
        missing = source.subtract(own, str(source.executed()))
    if missing:
        msg = (
            f"{source.host} lacks transactions that were published: {missing}. It is behind, or it never had them: then"
            " take a new snapshot (--new-snapshot)"
        )
        raise Interrupted(msg)
