"""One local transaction of a race: how it goes on, and how it ends; in a process of its own where it is killed."""

from __future__ import annotations

import contextlib
import enum
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from client_core.errors import LocalTransactionRefused
from client_core.local_database import join
from producer_sdk.fence import TransactionFence
from ways.shops import OfDriver, Shop

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 0.05
"""Seconds that steps are apart, at most."""


class Course(enum.Enum):
    """How a local transaction goes."""

    FAST = enum.auto()
    SLOW = enum.auto()
    LATE = enum.auto()
    ROLLED_BACK = enum.auto()
    SESSION_ENDED = enum.auto()
    KILLED_BEFORE = enum.auto()
    KILLED_AFTER = enum.auto()


KILLED = (Course.KILLED_BEFORE, Course.KILLED_AFTER)


def run(shop: Shop, transaction_id: str, course: Course, seed: int, ready: Callable[[], None]) -> None:
    """Runs a local transaction, which writes an order under its id; what it raises is its end.

    Args:
        shop: The database.
        transaction_id: Its id.
        course: How it goes.
        seed: Of its times.
        ready: Called when it is about to begin.
    """
    connection = shop.connect()
    try:
        _run(shop, connection, transaction_id, course, random.Random(seed), ready)
    except LocalTransactionRefused:
        pass
    finally:
        with contextlib.suppress(Exception):
            connection.close()


def _run(
    shop: Shop, connection: Any, transaction_id: str, course: Course, chance: random.Random, ready: Callable[[], None]
) -> None:
    end_session = _session_ender(shop, connection)
    local = join(connection)
    fence = TransactionFence(shop.connect)
    fence.identity()
    ready()
    if course is Course.LATE:
        time.sleep(chance.uniform(0, 2 * LONGEST))
    # What a block does, step by step.
    local.begin()
    fence.put(local, transaction_id)
    if course is not Course.FAST:
        time.sleep(chance.uniform(0, LONGEST))
    OfDriver(connection).write(transaction_id)
    if course is Course.ROLLED_BACK:
        local.rollback()
        return
    ending = threading.Thread(target=end_session)
    if course is Course.SESSION_ENDED:
        ending.start()
        # The server hears of it shortly before the COMMIT, or while it is on its way.
        time.sleep(chance.uniform(0, 0.04))
    if course is Course.KILLED_BEFORE:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(Exception):
        local.commit()
    if ending.is_alive():
        ending.join()
    if course is Course.KILLED_AFTER:
        os.kill(os.getpid(), signal.SIGKILL)


def _session_ender(shop: Shop, connection: Any) -> Callable[[], None]:
    """What has the server end a connection's session, while its COMMIT is on its way or shortly before."""
    if shop.kind == "sqlite":
        return lambda: None
    statement = "SELECT pg_backend_pid()" if shop.kind == "postgresql" else "SELECT CONNECTION_ID()"
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        session = int(cursor.fetchone()[0])
    connection.rollback()

    def end() -> None:
        kill = f"SELECT pg_terminate_backend({session})" if shop.kind == "postgresql" else f"KILL {session}"
        with contextlib.closing(shop.connect()) as other, contextlib.closing(other.cursor()) as cursor:
            cursor.execute(kill)
            other.commit()

    return end


def run_in_process(kind: Any, url: str, transaction_id: str, course: Course, seed: int, ready: Any) -> None:
    """The same, as the target of a process; `ready` is an event."""
    import sqlalchemy as sa

    run(Shop(kind, url, sa.create_engine(url)), transaction_id, course, seed, ready.set)
