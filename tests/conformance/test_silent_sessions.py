"""The server ends a session that keeps a transaction open in silence; idle ones are renewed before anybody notices."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from broker.storage.engine.connection import Database
from broker.storage.engine.transaction_runner import TransactionRunner
from support.sessions import processlist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session
    from conformance.world import World

pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
ENOUGH = 60.0


@pytest.fixture
def limited(world: World) -> Iterator[Database]:
    database = world.database(hold_limit=1)
    yield database
    database.close()


def own_id(session: Session) -> int:
    return int(session.fetch("SELECT CONNECTION_ID()")[0][0])


async def gone(session: Session, connection: int) -> None:
    """Returns when the server has ended a connection."""
    async with asyncio.timeout(ENOUGH):
        ((version,),) = session.fetch("SELECT VERSION()")
        query = f"SELECT COUNT(*) FROM {processlist(version)} WHERE id = ?"
        while session.fetch(query, (connection,))[0][0]:
            await asyncio.to_thread(session.fetch, "SELECT SLEEP(0.1)")


async def test_a_silent_transaction_is_ended(world: World, topic: Topic, limited: Database) -> None:
    silent, other = limited.session(), world.session()
    silent.begin()
    silent.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (topic.queue_ids[0],))
    other.begin()
    async with asyncio.timeout(ENOUGH):
        while not other.fetch(
            "SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE SKIP LOCKED", (topic.queue_ids[0],)
        ):
            await asyncio.to_thread(other.fetch, "SELECT SLEEP(0.1)")
    other.rollback()
    limited.discard(silent)


@pytest.mark.parametrize("reading", [False, True], ids=["writing", "reading"])
async def test_nobody_notices_that_a_session_was_idle(
    world: World, limited: Database, caplog: pytest.LogCaptureFixture, reading: bool
) -> None:
    caplog.set_level(logging.INFO)
    runner = TransactionRunner(limited, reconnect_timeout=ENOUGH, reading=reading)
    first = runner.transact(own_id, write=not reading)
    other = world.session()
    if limited.idle_limit(reading=reading) < ENOUGH:
        await gone(other, first)
        assert runner.transact(own_id, write=not reading) != first
    else:
        await asyncio.to_thread(other.fetch, "SELECT SLEEP(2)")  # The server would have ended it by now.
        assert runner.transact(own_id, write=not reading) == first
    runner.close()
    # Threads of other tests may have something to say.
    assert not [record for record in caplog.records if record.thread == threading.get_ident()]


async def test_a_pooled_session_that_was_idle_is_not_given_out(world: World, limited: Database) -> None:
    session = limited.session()
    first = own_id(session)
    session.rollback()
    limited.release(session)
    if limited.idle_limit() < ENOUGH:
        await gone(world.session(), first)
        session = limited.session()
        assert own_id(session) != first
    else:
        session = limited.session()
        assert own_id(session) == first
    limited.release(session)


async def test_a_session_that_is_released_after_the_end_is_closed(world: World, limited: Database) -> None:
    session = limited.session()
    own = session.connection.dbapi_connection
    limited.close()
    assert own.open
    limited.release(session)
    assert not own.open


async def test_a_session_that_is_released_while_all_others_are_discarded_is_closed(
    world: World, limited: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would use it again, nor close it."""
    session, broken = limited.session(), limited.session()
    own = session.connection.dbapi_connection
    restore = limited.dialect.restore

    def meanwhile(restored: Session) -> None:
        restore(restored)
        limited.discard(broken)

    monkeypatch.setattr(limited.dialect, "restore", meanwhile)
    limited.release(session)
    assert not own.open
