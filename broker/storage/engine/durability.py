"""Refuses, at the start, a database whose settings could lose acknowledged data; names the setting."""

from __future__ import annotations

from broker.errors import ConfigurationError
from broker.storage.engine.connection import HOLD_LIMIT, Database, parse_url
from broker.storage.engine.dialects import DIALECTS

USUAL_BODY = 4 * 1024 * 1024


def open_database(
    url: str,
    *,
    answer_timeout: float,
    allow_unsafe: bool = False,
    largest_body: int = USUAL_BODY,
    table_prefix: str = "",
) -> tuple[Database, list[str]]:
    """Connects and checks; returns the database, and warnings about settings that are allowed but not recommended.

    Args:
        url: of the database.
        answer_timeout: seconds that a statement may take.
        allow_unsafe: warn instead of refusing.
        largest_body: bytes of the largest allowed body.
        table_prefix: prefix of the names of all tables.

    Raises:
        ConfigurationError: wrong URL, server not reachable, wrong password, version too old, or settings under which
            acknowledged commits could be lost (unless `allow_unsafe`, which turns those into warnings).
    """
    try:
        database = Database(url, answer_timeout=answer_timeout, hold_limit=HOLD_LIMIT, table_prefix=table_prefix)
        try:
            unsafe, warnings = _check(database, largest_body)
            if unsafe and not allow_unsafe:
                raise ConfigurationError(" ".join(unsafe), field="database")
        except BaseException:
            database.close()
            raise
    except ConfigurationError:
        raise
    except Exception as error:
        shown = parse_url(url)
        text = DIALECTS[shown.get_backend_name()].connect_error(shown, error)
        raise ConfigurationError(text, field="database") from error
    return database, unsafe + warnings


def _check(database: Database, largest_body: int) -> tuple[list[str], list[str]]:
    session = database.session()
    try:
        found = database.dialect.check(session, database.target, database.version, largest_body)
        session.rollback()
    finally:
        database.release(session)
    return found
