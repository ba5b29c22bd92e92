"""Transactions that MySQL or MariaDB rolled back by itself, and that a program went on with.

After a deadlock the server has undone the whole transaction, SQLAlchemy takes it for open, and the next statement
begins another one. Who catches the error and goes on commits half of the work: a message without its order, or an order
without its message. Blocks watch each statement; messages and marks that are written into a transaction of the user's
own (``put``, ``mark``) are looked after here, by what the engine tells of errors: while there are none, that costs
nothing.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from client_core.errors import LocalTransactionEnded
from client_core.local_database.dialects import dialect_of, first_line_of
from client_core.local_database.engine_events import EngineEvents, run_beside

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext

__all__ = ["follow", "listen"]


@dataclass(slots=True)
class _Rollback:
    """What may have been rolled back, and by which error."""

    root: object
    error: BaseException


_rolled_back: weakref.WeakKeyDictionary[sa.Connection, _Rollback] = weakref.WeakKeyDictionary()
_followed: weakref.WeakSet[sa.Connection] = weakref.WeakSet()
"""Those with messages or marks in their open transaction."""


def listen(engine: sa.Engine) -> None:
    """Has errors of an engine's connections noted; once for each engine."""
    if engine.dialect.name in {"mysql", "mariadb"}:
        _events.listen(engine)


def follow(connection: sa.Connection) -> None:
    """A message or a mark is about to be written in the open transaction of a connection.

    What the server rolls back later has the COMMIT refused.

    Raises:
        LocalTransactionEnded: The server has rolled the transaction back.
    """
    listen(connection.engine)
    _refuse(connection)
    _followed.add(connection)


def _failed(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is None or not isinstance(context.sqlalchemy_exception, sa.exc.DBAPIError):
        return
    root, error = connection.get_transaction(), context.original_exception
    if root is None or not dialect_of(connection.dialect.name).may_roll_back(error, _no_query):
        return
    before = _rolled_back.get(connection)
    if before is None or before.root is not root:
        _rolled_back[connection] = _Rollback(root, error)


def _no_query(sql: str) -> list[tuple[Any, ...]]:
    raise LookupError(sql)


def _committing(connection: sa.Connection) -> None:
    is_followed = connection in _followed
    try:
        if is_followed:
            _refuse(connection)
    except BaseException:
        # SQLAlchemy takes the transaction for over, whatever becomes of its COMMIT.
        connection.connection.rollback()
        raise
    finally:
        _forget(connection)


def _forget(connection: sa.Connection) -> None:
    _followed.discard(connection)
    _rolled_back.pop(connection, None)


def _refuse(connection: sa.Connection) -> None:
    found = _rolled_back.get(connection)
    if found is None or found.root is not connection.get_transaction():
        return
    if not dialect_of(connection.dialect.name).may_roll_back(found.error, lambda sql: run_beside(connection, sql)):
        del _rolled_back[connection]
        return
    msg = (
        f"the server rolled the whole transaction back ({first_line_of(found.error)}), and what came before that error "
        "is lost: let the error leave the transaction, roll back, and run all of it again"
    )
    raise LocalTransactionEnded(msg) from found.error


_events = EngineEvents(handle_error=_failed, commit=_committing, rollback=_forget)
