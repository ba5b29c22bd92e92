"""Refuses, at the start, a database whose settings could lose acknowledged data; names the setting.

Settings are a server's own: those of the others are warned of, and those of a new primary are told when it is one.
"""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.errors import ConfigurationError
from broker.storage.engine.connection import HOLD_LIMIT, Database, parse_url
from broker.storage.engine.dialects import DIALECTS
from broker.storage.engine.unsuitable import Unsuitable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.cluster.addresses import Address
    from broker.storage.engine.cluster.promise import Promise

logger = logging.getLogger("halfmq.storage")

USUAL_BODY = 4 * 1024 * 1024


def connect(
    url: str,
    *,
    answer_timeout: float,
    table_prefix: str = "",
    only_looks: bool = False,
    cell: int | None = None,
) -> Database:
    """Connects, whatever the settings.

    Args:
        url: of the database.
        answer_timeout: seconds that a statement may take.
        table_prefix: prefix of the names of all tables.
        only_looks: Galera: never move the node that brokers write to.
        cell: number of the cell that it is; None: there are no cells.

    Raises:
        ConfigurationError: wrong URL, server not reachable, or wrong password.
    """
    with _explained(url):
        database = Database(
            url,
            answer_timeout=answer_timeout,
            hold_limit=HOLD_LIMIT,
            table_prefix=table_prefix,
            only_looks=only_looks,
            cell=cell,
        )
        try:
            # A file is opened by the first session only.
            database.release(database.session())
        except BaseException:
            database.close()
            raise
    return database


def open_database(
    url: str,
    *,
    answer_timeout: float,
    allow_unsafe: bool = False,
    largest_body: int = USUAL_BODY,
    table_prefix: str = "",
    cell: int | None = None,
) -> tuple[Database, list[str]]:
    """Connects and checks; returns the database, and warnings about settings that are allowed but not recommended.

    Args:
        url: of the database.
        answer_timeout: seconds that a statement may take.
        allow_unsafe: warn instead of refusing.
        largest_body: bytes of the largest allowed body.
        table_prefix: prefix of the names of all tables.
        cell: number of the cell that it is; None: there are no cells.

    Raises:
        ConfigurationError: wrong URL, server not reachable, wrong password, version too old, or settings under which
            acknowledged commits could be lost (unless `allow_unsafe`, which turns those into warnings).
    """
    database = connect(url, answer_timeout=answer_timeout, table_prefix=table_prefix, cell=cell)
    with _explained(url):
        try:
            promise = _check(database, largest_body)
            unsafe = promise.unsafe
            if unsafe and not allow_unsafe:
                raise ConfigurationError(" ".join(map(str, unsafe)), field="database")
            others = settings_of_others(database, largest_body, promise)
        except BaseException:
            database.close()
            raise
    database.survives = promise.survives
    database.check_later(partial(_check_primary, database, largest_body))
    return database, [str(each) for each in (*unsafe, *promise.warnings, *others)]


def settings_of_others(database: Database, largest_body: int, promise: Promise) -> list[Unsuitable]:
    """Settings of the servers that are not the primary, and that would break a promise if they were.

    Args:
        database: the database, whose servers were asked for their roles.
        largest_body: bytes of the largest allowed body.
        promise: of the primary; what is wrong there, too, is left out.
    """
    known = {each.found for each in (*promise.unsafe, *promise.warnings)}
    found = []
    for address, role, *_ in database.servers:
        if role is None or role.writable:
            continue
        try:
            with closing(database.ask(address)) as connection:
                other = database.dialect.check_server(connection, database.target, largest_body, primary=False)
        except Exception:
            logger.debug("the settings of %s are not known", address, exc_info=True)
            continue
        found += [
            Unsuitable(f"{address}, if it becomes the primary: {each.found}", each.remedy)
            for each in (*other.unsafe, *other.warnings)
            if each.found not in known
        ]
    return found


def _check_primary(database: Database, largest_body: int, address: Address, connection: Any) -> None:
    """Tells what is wrong with the settings of another primary; to end for that would be worse."""
    promise = database.dialect.check_server(connection, database.target, largest_body)
    for each in promise.unsafe:
        logger.error("the primary %s would be refused at a start: %s", address, each)
    for each in promise.warnings:
        logger.warning("the primary %s: %s", address, each)
    if promise.survives != database.survives:
        logger.warning("an acknowledged commit survives %s now", promise.survives)
    database.survives = promise.survives


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Converts errors of the driver to ConfigurationError."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        shown = parse_url(url)
        text = DIALECTS[shown.get_backend_name()].connect_error(shown, error)
        raise ConfigurationError(text, field="database") from error


def _check(database: Database, largest_body: int) -> Promise:
    session = database.session()
    try:
        found = database.dialect.check(session, database.target, database.version, largest_body)
        session.rollback()
    finally:
        database.release(session)
    return found
