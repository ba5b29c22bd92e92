"""`halfmq restored`: tells the database that it was restored, before brokers start on it again."""

from __future__ import annotations

import getpass
import sys
import time
from typing import TYPE_CHECKING

from broker.config_sources import load_config
from broker.errors import BrokerError, ConfigurationError
from broker.maintenance.status_reporter import INTERVAL
from broker.storage.adapters.restoring import reports, tell_of_restore
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, newest
from halfmq_cli.serve import ConfigFile, Database, DatabaseFile, TablePrefix  # noqa: TC001 - typer reads them
from halfmq_cli.serving import fail, refuse_missing_file

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database as Opened

LONGEST_REPORT = INTERVAL + 2.0
"""Seconds within which a broker that runs has reported again."""
PAUSE = 0.5


def restored(
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Run this once after a restore of the database, or a failover that lost transactions, before brokers start.

    What brokers handed out in the time that the restore undid will never be taken for something else: offsets of queues
    and numbers of leases go on above all that were given. Messages that were being handled are delivered again. It
    changes and deletes no message, and to run it without need, or twice, does no harm.
    """
    arguments = {"database": database, "database_file": database_file, "table_prefix": table_prefix}
    try:
        config = load_config(arguments, file=config_file)
        refuse_missing_file(config.database)
        opened, _ = open_database(
            config.database, answer_timeout=config.answer_timeout, allow_unsafe=True, table_prefix=config.table_prefix
        )
        try:
            _refuse_without_tables(opened)
            _refuse_with_brokers(opened)
            done = tell_of_restore(opened, f"os:{getpass.getuser()}")
        finally:
            opened.close()
    except BrokerError as error:
        fail(error)
    sys.stdout.write(
        f"{opened.shown_url}: offsets and leases go on at {done.first_number} in {done.queues} queues;"
        f" {done.leases} interrupted leases are due again; {done.sinks} sinks. Start the brokers.\n"
    )


def _refuse_without_tables(database: Opened) -> None:
    version = current(database)
    if version is None:
        prefix = database.names.prefix
        with_prefix = f" with the prefix {prefix!r}" if prefix else ""
        raise ConfigurationError(
            f"{database.shown_url} has no tables of halfmq{with_prefix}: it is not what was restored. Correct the URL"
            " or `table_prefix`.",
            field="database",
        )
    if version != newest():
        older = version < newest()
        remedy = "run `halfmq migrate`, then this again" if older else "use the version of halfmq that the brokers have"
        raise ConfigurationError(
            f"The tables are at version {version}, this program needs {newest()}: {remedy}.", field="database"
        )


def _refuse_with_brokers(database: Opened) -> None:
    """Refuses while a broker reports. The reports of before the restore are there as well, but do not change."""
    before = reports(database)
    sys.stderr.write(f"halfmq: looking for {LONGEST_REPORT:g} s whether a broker runs\n")
    until = time.monotonic() + LONGEST_REPORT
    while time.monotonic() < until:
        time.sleep(PAUSE)
        after = reports(database)
        if running := sorted(name for name, seen_at in after.items() if before.get(name) != seen_at):
            raise ConfigurationError(
                f"Brokers run on it ({', '.join(running)}): stop all of them, then run this again.", field="database"
            )
        before = after
