"""The supported databases: a class for each, and the one of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from broker.storage.engine.dialects.galera import Galera
from broker.storage.engine.dialects.mariadb import MariaDB
from broker.storage.engine.dialects.mysql import MySQL
from broker.storage.engine.dialects.sqlite import SQLite
from broker.storage.engine.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.storage.engine.dialects.base import Dialect

DIALECTS: Mapping[str, Dialect] = {"mysql": MySQL(), "mariadb": MariaDB(), "sqlite": SQLite()}
"""By the name in a URL; which one it really is, and in which cluster, tells `recognised`."""

__all__ = ["DIALECTS", "Galera", "failure_of", "is_database_error", "is_lock_timeout"]


def failure_of(error: BaseException) -> Failure:
    """Classifies an error raised by a session, for any database."""
    for dialect in DIALECTS.values():
        if (found := dialect.failure_of(error)) is not None:
            return found
    lost = isinstance(error, ConnectionError | TimeoutError | sa.exc.TimeoutError)
    return Failure.LOST if lost else Failure.OTHER


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a wait for another session's row lock timed out."""
    return any(dialect.is_lock_timeout(error) for dialect in DIALECTS.values())


def is_database_error(error: BaseException) -> bool:
    """Whether the error came from a database, not from the code around it."""
    return isinstance(error, ConnectionError | TimeoutError | sa.exc.SQLAlchemyError) or any(
        dialect.failure_of(error) is not None for dialect in DIALECTS.values()
    )
