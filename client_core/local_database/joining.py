"""From what a user hands in to the local transaction that it stands for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NoReturn

from client_core.errors import ConfigurationError
from client_core.local_database.by_dbapi import DbapiTransaction
from client_core.local_database.drivers import driver_of

if TYPE_CHECKING:
    from client_core.local_database.transactions import AsyncLocalTransaction, LocalTransaction

__all__ = ["join", "join_async", "packages_of"]

_SYNC = (
    "a SQLAlchemy Session, Connection or Engine, a connection of Django's (django.db.connection), or a connection of "
    "PyMySQL, mysqlclient, psycopg or sqlite3"
)
_ASYNC = "an AsyncSession, AsyncConnection or AsyncEngine of SQLAlchemy"


def join(given: object) -> LocalTransaction:
    """The local transaction of a synchronous session or connection; not begun yet.

    Raises:
        ConfigurationError: It is nothing of the kind.
    """
    if "sqlalchemy" in packages_of(given):
        from client_core.local_database.by_sqlalchemy import SqlalchemyTransaction, sync_form  # noqa: PLC0415

        form = sync_form(given)
        if form is not None:
            return SqlalchemyTransaction(form)
    if "django" in packages_of(given):
        from client_core.local_database.by_django import DjangoTransaction, alias_of  # noqa: PLC0415

        alias = alias_of(given)
        if alias is not None:
            return DjangoTransaction(alias)
    driver = driver_of(given)
    if driver is not None:
        return DbapiTransaction(given, driver)
    _refuse(given, _SYNC, "; what belongs to asyncio goes to an AsyncTransactionProducer")


def join_async(given: object) -> AsyncLocalTransaction:
    """The local transaction of a session or connection of asyncio; not begun yet.

    Raises:
        ConfigurationError: It is nothing of the kind.
    """
    if "sqlalchemy" in packages_of(given):
        from client_core.local_database.by_asyncio import async_form  # noqa: PLC0415

        form = async_form(given)
        if form is not None:
            return form
    _refuse(given, _ASYNC, "; what blocks goes to a TransactionProducer")


def packages_of(given: object) -> frozenset[str]:
    """The packages that the class of an object and its bases come from."""
    # mypy takes the __hash__ of objects of a class for that of the class.
    return _packages_of_class(type(given))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _packages_of_class(kind: type) -> frozenset[str]:
    return frozenset(base.__module__.partition(".")[0] for base in kind.__mro__)


def _refuse(given: object, wanted: str, otherwise: str) -> NoReturn:
    msg = f"the local transaction is that of {wanted}, not of {type(given).__name__}{otherwise}"
    raise ConfigurationError(msg, field="database")
