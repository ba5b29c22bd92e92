"""Forced interleavings: seeing one transaction wait for another, stopping one half way, and COMMITs that come late."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pymysql
import pytest

from broker.storage.engine import greenlets
from broker.storage.engine.session import Session
from broker.storage.engine.statements import Unexpected
from support.lock_waits import waiting_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from broker.storage.engine.statements import Statement
    from conformance.world import World

Result = TypeVar("Result")

PATIENCE = 60


async def waits_or_ends(world: World, task: asyncio.Future[Any]) -> None:
    """Returns when a transaction waits for a lock, or the task is done. SQLite lets nobody begin, and tells nothing."""
    if world.kind == "sqlite":
        await asyncio.wait([task], timeout=0.2)
        return
    session = world.session()
    for _ in range(PATIENCE * 8):
        if task.done():
            return
        waiting = waiting_transactions(session)
        session.rollback()
        if waiting:
            return
        await asyncio.sleep(0.1)
    pytest.fail("neither waits for a lock nor ends")


async def ending(task: asyncio.Future[Result]) -> Result:
    """What a task gives, in reasonable time."""
    return await asyncio.wait_for(task, PATIENCE)


def wait_in_work(event: threading.Event) -> None:
    """Stops work until the test lets it go on, whether it runs in a thread or in a greenlet on the event loop."""
    for _ in range(PATIENCE * 100):
        if event.is_set():
            return
        greenlets.pause(0.01)
    pytest.fail("the test does not let the work go on")


def await_in_work(call: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> Result:
    """What a call on the event loop gives, for work in a thread or in a greenlet."""
    here = greenlets.current()
    if here is not None:
        return here.wait_for(asyncio.ensure_future(call))
    return asyncio.run_coroutine_threadsafe(call, loop).result(PATIENCE)


class Pause:
    """Stops a function the first time that it is called, after it did its work, until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
        self._wrapped: Callable[..., Any] = getattr(module, name)
        self._entered, self._go_on = threading.Event(), threading.Event()
        self._met = False
        monkeypatch.setattr(module, name, self)

    def __call__(self, *values: Any, **named: Any) -> Any:
        result = self._wrapped(*values, **named)
        if not self._met:
            self._met = True
            self._entered.set()
            wait_in_work(self._go_on)
        return result

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, PATIENCE)

    def go_on(self) -> None:
        self._go_on.set()


def unheard(session: Session) -> None:
    """Nobody gets the answers of the statements that were left to the COMMIT: they are lost with its own."""
    session._last = [(statements, None) for statements, _ in session._last]


class LateCommit:
    """A COMMIT whose connection breaks on the way: it takes effect, or is undone, when the test says so.

    With `whole`, so do the statements that were left to it.
    """

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *, whole: bool = False) -> None:
        self._world = world
        self._whole = whole
        self._real = Session.commit
        self._armed = False
        self._met = threading.Event()
        self._connection: Any = None
        self._session: Any = None
        self._rest: list[Statement] = []
        late = self

        def commit(session: Session) -> None:
            late._commit(session)

        monkeypatch.setattr(Session, "commit", commit)

    def _commit(self, session: Session) -> None:
        if not self._armed or session.reading:
            self._real(session)
            return
        self._armed = False
        self._connection = session.connection.dbapi_connection
        self._rest = [each for statements, _ in session._last for each in statements]
        self._session = session
        unheard(session)
        if self._whole:
            session._forget_last()
        else:
            session.run_last()
        # The broker takes it for lost; the server goes on with it.
        session.connection.detach()
        self._world.clock.pass_time(1)
        self._met.set()
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    async def during(self, call: Coroutine[Any, Any, Result], *, arrives: bool) -> Result:
        """What a call answers whose COMMIT arrives, or is undone, only when the call looks for it again."""
        self._armed = True
        self._met.clear()
        task = asyncio.ensure_future(call)
        assert await asyncio.to_thread(self._met.wait, PATIENCE)
        await waits_or_ends(self._world, task)
        if arrives:
            await asyncio.to_thread(self._arrive)
        self._connection.close()
        return await ending(task)

    def _arrive(self) -> None:
        if not (self._whole and self._rest):
            self._connection.commit()
            return
        cursor = self._connection.cursor()
        # It may come too late, and be refused then.
        with contextlib.suppress(pymysql.err.MySQLError, Unexpected):
            self._session.dialect.finish(cursor, self._rest, self._session._names.in_statement)
