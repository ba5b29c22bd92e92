"""Explains database errors in a migration, with their remedies."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.errors import ConfigurationError
from broker.storage.engine.dialects import failure_of
from broker.storage.engine.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.connection import Database

RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX"
DENIED = {1044, 1142, 1143, 1227, 1370}
"""The servers' errors where a user lacks a right."""
_GOES_ON = "What was done stays done: start again, and it goes on from there."


@contextmanager
def explained(database: Database) -> Iterator[None]:
    """Converts database errors that an administrator can fix to ConfigurationError."""
    try:
        yield
    except Exception as error:
        # SQLAlchemy wraps the driver's errors, sessions do not.
        found = getattr(error, "orig", None) or error
        if (text := _explanation(found, database)) is None:
            raise
        raise ConfigurationError(text, field="database") from error


def _explanation(error: BaseException, database: Database) -> str | None:
    url, code = database.url, error.args[0] if error.args else 0
    if code in DENIED:
        lacking = re.match(r"([A-Z, ]+) command denied", str(error.args[-1]))
        what = f"lacks the right {lacking[1]}" if lacking else f"lacks a right ({error.args[-1]})"
        return (
            f"The database user {url.username!r} {what}, which migrations need: "
            f"GRANT {RIGHTS} ON `{url.database}`.* TO {url.username!r}@..., "
            "or run `halfmq migrate` as a user that has them."
        )
    failure = failure_of(error)
    if failure is Failure.RETRY:
        return (
            f"A migration waited too long for others that use its tables ({error}): end transactions that stay open, "
            f"and programs that hang. {_GOES_ON}"
        )
    if failure is Failure.LOST:
        return f"The migration lost its connection to the database ({error}). {_GOES_ON}"
    if failure is Failure.READ_ONLY:
        return f"The database is read-only ({error}): migrations need one that can be written."
    if failure is Failure.FULL:
        return f"There is no space left for the database ({error}): make some. {_GOES_ON}"
    return None
