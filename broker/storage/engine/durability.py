"""Refuses, at the start, a database whose settings could lose acknowledged data; names the setting."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.errors import ConfigurationError
from broker.storage.engine.connection import HOLD_LIMIT, Database, parse_url
from broker.storage.engine.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.cluster.promise import Promise

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
        except BaseException:
            database.close()
            raise
    database.survives = promise.survives
    return database, [str(each) for each in (*unsafe, *promise.warnings)]


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
