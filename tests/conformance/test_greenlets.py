"""Small batches run on the event loop, and keep nothing else from it."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.errors import StorageUnavailable
from broker.storage.engine import greenlets
from broker.storage.engine.connection import Database
from broker.storage.engine.group_commit import MOST_BYTES_ON_LOOP, MOST_ON_LOOP
from broker.storage.engine.transaction_runner import TransactionRunner
from conformance.world import bodies, ok, pull, sending
from support.databases import server_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import ClaimWork
    from broker.ports.log import SendWork
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session
    from conformance.world import World
    from support.databases import Kind

ENOUGH = 60.0
SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


async def turns_until_done(running: asyncio.Future[object]) -> int:
    """How often others had their turn on the event loop."""
    turns = 0
    while not running.done():
        await asyncio.sleep(0.01)
        turns += 1
    return turns


async def test_where_a_batch_runs(world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    real = store._sends._runner._work

    def work(session: Session, items: Sequence[SendWork]) -> object:
        threads.append(threading.get_ident())
        return real(session, items)

    monkeypatch.setattr(store._sends._runner, "_work", work)
    here = threading.get_ident()
    for count, body in ((1, "a"), (MOST_ON_LOOP, "a"), (MOST_ON_LOOP + 1, "a"), (1, "a" * (MOST_BYTES_ON_LOOP + 1))):
        ok(await store.send([sending(topic, body) for _ in range(count)]))
    on_loop = world.kind != "sqlite"
    assert [each == here for each in threads] == [on_loop, on_loop, False, False]


@SERVERS
async def test_after_a_claim_of_many_messages_the_next_one_is_made_in_the_thread(
    store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = store._claims._runner._work

    def work(session: Session, items: Sequence[ClaimWork]) -> object:
        threads.append(threading.get_ident())
        return real(session, items)

    monkeypatch.setattr(store._claims._runner, "_work", work)
    ok(await store.send([sending(topic, f"{number}") for number in range(200)]))
    assert len(bodies(await pull(store, group, topic, limit=200))) == 200
    for _ in range(2):
        assert await pull(store, group, topic) == []
    here = threading.get_ident()
    assert [each == here for each in threads] == [True, False, True]


@SERVERS
async def test_others_have_their_turn_while_the_server_works(
    store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store._sends._runner._work

    def work(session: Session, items: Sequence[SendWork]) -> object:
        session.fetch("SELECT SLEEP(0.5)")
        return real(session, items)

    monkeypatch.setattr(store._sends._runner, "_work", work)
    async with asyncio.timeout(ENOUGH):
        running = asyncio.ensure_future(store.send([sending(topic)]))
        assert await turns_until_done(running) > 1
    ok(await running)


@SERVERS
async def test_a_server_that_does_not_answer_is_given_up_in_time(world: World) -> None:
    with closing(Database(world.url, answer_timeout=0.2)) as database:
        runner = TransactionRunner(database, reconnect_timeout=0.0)
        # Its own shortest timeout is longer.
        assert await greenlets.start(lambda: runner.transact(lambda session: session.fetch("SELECT 1"))) == ((1,),)
        running = greenlets.start(lambda: runner.transact(lambda session: session.fetch("SELECT SLEEP(30)")))
        async with asyncio.timeout(ENOUGH):
            with pytest.raises(StorageUnavailable, match="lost"):
                await running
        assert await greenlets.start(lambda: runner.transact(lambda session: session.fetch("SELECT 2"))) == ((2,),)
        runner.close()


@SERVERS
async def test_others_have_their_turn_while_it_connects(world: World) -> None:
    with (
        closing(Database(world.url)) as database,
        socket.create_server(("127.0.0.1", 0)) as silent,  # The system accepts connections, and nobody answers.
    ):
        host, port = silent.getsockname()
        database.target = replace(database.target, url=database.url.set(host=host, port=port))
        database._primary = None  # which knows another address
        runner = TransactionRunner(database, reconnect_timeout=1.0)
        async with asyncio.timeout(ENOUGH):
            running = greenlets.start(lambda: runner.transact(lambda session: session.fetch("SELECT 1")))
            assert await turns_until_done(running) > 1
        with pytest.raises(StorageUnavailable):
            await running


@SERVERS
def test_an_answer_that_nobody_awaits_any_more_is_not_taken_for_another_one(kind: Kind) -> None:
    """When the event loop ends before the broker was closed."""
    with closing(Database(server_url(kind))) as database:
        runner = TransactionRunner(database, reconnect_timeout=5.0)

        async def leave() -> None:
            await greenlets.start(lambda: runner.transact(lambda session: session.fetch("SELECT 1")))
            greenlets.start(lambda: runner.transact(lambda session: session.fetch("SELECT SLEEP(0.1), 1")))

        asyncio.run(leave())
        time.sleep(0.3)
        assert runner.transact(lambda session: session.fetch("SELECT 2")) == ((2,),)
        runner.close()


@SERVERS
def test_a_connection_of_before_a_loss_is_closed_when_it_is_released(kind: Kind) -> None:
    """Not by the collector of garbage, some time."""
    with closing(Database(server_url(kind))) as database:
        lost, kept = database.session(), database.session()
        own = kept.connection.dbapi_connection
        database.discard(lost)
        database.release(kept)
        assert own._sock is None
        later = database.session()
        own = later.connection.dbapi_connection
        database.release(later)
        assert own._sock is not None


async def test_a_failure_keeps_nothing_alive() -> None:
    """An error refers to the work by its traceback, and nothing of it must refer to the error."""

    class Held:
        pass

    async def fail() -> weakref.ref[Held]:
        held = Held()

        def work() -> None:
            greenlets.pause(0)
            raise LookupError(held)

        with pytest.raises(LookupError):
            await greenlets.start(work)
        return weakref.ref(held)

    gc.disable()
    try:
        held = await fail()
        await asyncio.sleep(0)  # The event loop itself still has it.
        assert held() is None
    finally:
        gc.enable()


@SERVERS
async def test_connecting_needs_no_thread_of_others(world: World, topic: Topic) -> None:
    """Those of the event loop may all be busy, with large requests or with connections of other lanes."""
    store = world.broker("b")
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))  # The event loop shuts it down.
    busy = loop.run_in_executor(None, free.wait, ENOUGH)
    async with asyncio.timeout(ENOUGH / 2):
        ok(await store.send([sending(topic)]))
    free.set()
    assert await busy
