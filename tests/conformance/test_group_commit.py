"""Merging: one bad item is its own misfortune, and what the database undid is done again."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.domain.transaction import VerdictSource
from broker.errors import Overloaded, StorageRejected, StorageUnavailable
from broker.ports.log import SendWork
from broker.ports.transactions import Half, PrepareWork
from broker.storage.engine.group_commit import LaneConfig
from broker.storage.log import log
from broker.storage.log import log as log_module
from broker.storage.transactions import halves, verdicts
from conformance.interleaving import wait_in_work
from conformance.world import (
    HOUR,
    InThread,
    World,
    commit,
    half,
    log_of,
    new_id,
    of,
    ok,
    prepared,
    rollback,
    sending,
)
from support.lock_waits import waiting_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


class TestBadItems:
    @pytest.mark.parametrize("place", [0, 1, 4])
    async def test_a_prepare_the_database_refuses(
        self, world: World, store: Store, topic: Topic, place: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop = await store.producer_group_id("shop")
        work = [PrepareWork(new_id(), shop, [half(topic, f"{n}"), half(topic)]) for n in range(5)]
        work[place].producer_group_id = None  # type: ignore[assignment]
        outcomes = await store.prepare(work)
        of(StorageRejected, outcomes[place])
        ok(outcomes[:place] + outcomes[place + 1 :])
        assert world.count("half_message") == 8
        assert "refused an item" in caplog.text

    @SERVERS
    async def test_a_text_longer_than_its_column(self, store: Store, topic: Topic) -> None:
        shop = await store.producer_group_id("shop")
        work = [PrepareWork(new_id(), shop, [half(topic)]) for _ in range(3)]
        work[1].halves[0].message.message_group = "g" * 65
        outcomes = await store.prepare(work)
        of(StorageRejected, outcomes[1])
        ok([outcomes[0], outcomes[2]])

    async def test_a_send_the_database_refuses_leaves_no_gap(self, store: Store, topic: Topic) -> None:
        broken = SendWork(new_id(), topic.topic_id, 0, Message("orders", b"x"))
        broken.message.body = _Unstorable(b"x")
        outcomes = await store.send([sending(topic, "a"), broken, sending(topic, "b")])
        of(StorageRejected, outcomes[1])
        ok([outcomes[0], outcomes[2]])
        assert [(m.offset, m.body) for m in await log_of(store, topic)] == [(0, b"a"), (1, b"b")]

    @SERVERS
    async def test_a_verdict_the_database_refuses(self, world: World, store: Store, topic: Topic) -> None:
        ids = [await prepared(store, topic) for _ in range(3)]
        outcomes = await store.decide([commit(ids[0]), commit(ids[1], reason="r" * 501), rollback(ids[2])])
        of(StorageRejected, outcomes[1])
        ok([outcomes[0], outcomes[2]])
        assert (world.count("op_record"), world.count("half_message")) == (2, 1)
        ok(await store.decide([commit(ids[1])]))
        assert len(await log_of(store, topic)) == 2

    async def test_items_of_other_callers_are_mates_too(self, store: Store, topic: Topic) -> None:
        shop = await store.producer_group_id("shop")
        bad = PrepareWork(new_id(), None, [half(topic)])  # type: ignore[arg-type]
        good = [PrepareWork(new_id(), shop, [half(topic)]) for _ in range(20)]
        answers = await asyncio.gather(store.prepare([bad]), *(store.prepare([item]) for item in good))
        of(StorageRejected, answers[0][0])
        ok([outcome for answer in answers[1:] for outcome in answer])

    async def test_a_lane_goes_on_after_a_bad_item(self, store: Store, topic: Topic) -> None:
        shop = await store.producer_group_id("shop")
        of(StorageRejected, (await store.prepare([PrepareWork(new_id(), None, [half(topic)])]))[0])  # type: ignore[arg-type]
        ok(await store.prepare([PrepareWork(new_id(), shop, [half(topic)])]))


class _Unstorable(bytes):
    """Passes for bytes until the database sees it."""

    def __len__(self) -> int:
        return 1

    def hex(self, *_: object) -> str:  # type: ignore[override]
        raise ValueError("not storable")

    def __conform__(self, protocol: object) -> object:
        raise ValueError("not storable")


class Failing:
    """Wraps a storage function; raises an error after its work, a number of times."""

    def __init__(self, wrapped: Callable[..., list[object]], error: Callable[[Session], None], times: int) -> None:
        self.wrapped, self.error, self.left, self.calls = wrapped, error, times, 0

    def __call__(self, session: Session, *rest: object, **named: object) -> list[object]:
        self.calls += 1
        outcome = self.wrapped(session, *rest, **named)
        if self.left:
            self.left -= 1
            self.error(session)
        return outcome


def _deadlock(session: Session) -> None:
    import sqlite3

    import pymysql

    if session.dialect.one_writer:
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorname = "SQLITE_BUSY"
        raise busy
    raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")


def _cut(session: Session) -> None:
    """The connection breaks before the COMMIT that follows."""
    if session.dialect.one_writer:
        _deadlock(session)
    session.connection.dbapi_connection._sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("trouble", [_deadlock, _cut])
@pytest.mark.parametrize("times", [1, 3])
class TestTrouble:
    """The whole batch is rolled back and run again; it has one effect."""

    async def test_prepare(
        self,
        world: World,
        store: Store,
        topic: Topic,
        monkeypatch: pytest.MonkeyPatch,
        trouble: Callable[[Session], None],
        times: int,
    ) -> None:
        failing = Failing(halves.prepare, trouble, times)
        monkeypatch.setattr(halves, "prepare", failing)
        await prepared(store, topic, bodies=["a", "b"])
        assert failing.calls == times + 1
        assert world.count("half_message") == 2

    async def test_decide(
        self,
        store: Store,
        topic: Topic,
        monkeypatch: pytest.MonkeyPatch,
        trouble: Callable[[Session], None],
        times: int,
    ) -> None:
        transaction_id = await prepared(store, topic)
        monkeypatch.setattr(verdicts, "decide", Failing(verdicts.decide, trouble, times))
        (outcome,) = await store.decide([commit(transaction_id)])
        assert outcome.released == ((topic.queue_ids[0], 0),)  # type: ignore[union-attr]
        assert [message.offset for message in await log_of(store, topic)] == [0]

    async def test_send(
        self,
        store: Store,
        topic: Topic,
        monkeypatch: pytest.MonkeyPatch,
        trouble: Callable[[Session], None],
        times: int,
    ) -> None:
        monkeypatch.setattr(log_module, "send", Failing(log.send, trouble, times))
        assert await store.send([sending(topic)]) == [(topic.queue_ids[0], 0)]
        assert len(await log_of(store, topic)) == 1


class _CommitCut:
    """A connection whose COMMIT arrives and whose answer does not."""

    def __init__(self, session: Session) -> None:
        self.session, self.commit = session, session.commit

    def __call__(self) -> None:
        import pymysql

        self.commit()
        self.session.connection.dbapi_connection._sock.shutdown(socket.SHUT_RDWR)
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")


@SERVERS
async def test_an_answer_lost_at_commit_has_one_effect(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepare, commit and send each meet a COMMIT that took effect without an answer."""

    def cut_once(module: object, name: str) -> None:
        real, met = getattr(module, name), []

        def once(session: Session, *rest: object, **named: object) -> object:
            if not met:
                met.append(True)
                session.commit = _CommitCut(session)  # type: ignore[method-assign]
            return real(session, *rest, **named)

        monkeypatch.setattr(module, name, once)

    for module, name in ((halves, "prepare"), (verdicts, "decide"), (log, "send")):
        cut_once(module, name)
    transaction_id = await prepared(store, topic, bodies=["a", "b"])
    assert world.count("half_message") == 2
    (outcome,) = await store.decide([commit(transaction_id)])
    assert outcome.released == ((topic.queue_ids[0], 0), (topic.queue_ids[0], 1))  # type: ignore[union-attr]
    work = sending(topic, "c")
    assert await store.send([work]) == [(topic.queue_ids[0], 2)]
    assert [message.body for message in await log_of(store, topic)] == [b"a", b"b", b"c"]
    assert (world.count("op_record"), world.count("half_message")) == (2, 0)


@SERVERS
async def test_a_real_deadlock_is_run_again(world: World, store: Store) -> None:
    """A foreign transaction holds one queue and wants the other; the database breaks the tie."""
    one, two = (
        await store.create_topic("one", TopicSettings(1, HOUR)),
        await store.create_topic("two", TopicSettings(1, HOUR)),
    )
    foreign = world.session()
    holding = "SELECT next_offset FROM queue WHERE queue_id = ? FOR UPDATE"
    for _ in range(3):
        ids = [await prepared(store, one), await prepared(store, two)]
        foreign.begin()
        # Many changed rows make this transaction the more expensive one, so the broker's is undone.
        foreign.insert("maintenance_turn", "task, broker_id, until", [(f"{n}", "", 0) for n in range(200)])
        foreign.fetch(holding, (two.queue_ids[0],))
        deciding = asyncio.ensure_future(store.decide([commit(i) for i in ids]))
        await _until_waiting(world)
        wanting = InThread(lambda: foreign.fetch(holding, (one.queue_ids[0],)))
        await asyncio.to_thread(wanting.join)
        foreign.rollback()
        ok(await deciding)
    assert [len(await log_of(store, topic)) for topic in (one, two)] == [3, 3]


async def _until_waiting(world: World) -> None:
    """Returns when some transaction waits for a lock."""
    session = world.session()
    for _ in range(600):
        waiting = waiting_transactions(session)
        session.rollback()
        if waiting:
            return
        await asyncio.sleep(0.1)
    pytest.fail("nothing waits for a lock")


@SERVERS
async def test_trouble_that_stays_is_told(world: World, topic: Topic) -> None:
    impatient = world.broker("b", lanes=LaneConfig(reconnect_timeout=0.0))
    foreign = world.session()
    foreign.begin()
    foreign.run("SET SESSION innodb_lock_wait_timeout = 1")
    foreign.fetch("SELECT next_offset FROM queue FOR UPDATE")
    (outcome,) = await asyncio.gather(impatient.send([sending(topic)]), return_exceptions=True)
    assert isinstance(outcome, StorageUnavailable), outcome
    foreign.rollback()
    ok(await impatient.send([sending(topic)]))
    assert [message.offset for message in await log_of(impatient, topic)] == [0]


async def test_more_than_may_wait_is_refused(world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.broker("b", lanes=LaneConfig(max_waiting_bytes=100))
    entered, go = threading.Event(), threading.Event()

    def blocked(session: Session, work: Sequence[SendWork], *rest: object) -> object:
        entered.set()
        wait_in_work(go)
        return log.send(session, work, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_sends", _relaned(store, blocked))
    first = asyncio.ensure_future(store.send([sending(topic, "x" * 60)]))
    await asyncio.to_thread(entered.wait, 60)
    second = asyncio.ensure_future(store.send([sending(topic, "y" * 60)]))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await store.send([sending(topic, "z" * 60)])
    go.set()
    ok([*await first, *await second])
    ok(await store.send([sending(topic, "z" * 60)]))
    assert len(await log_of(store, topic)) == 3


def _relaned(store: Store, work: Callable[..., object]) -> object:
    lane = store._sends
    lane._runner._work = lambda session, items: work(  # type: ignore[method-assign, return-value, assignment]
        session, items, store.clock.now(), store.directory, 0
    )
    return lane


async def test_a_caller_that_gives_up_while_waiting_changes_nothing(
    world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.broker("b")
    entered, go = threading.Event(), threading.Event()

    def blocked(session: Session, work: Sequence[SendWork], *rest: object) -> object:
        entered.set()
        wait_in_work(go)
        return log.send(session, work, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_sends", _relaned(store, blocked))
    first = asyncio.ensure_future(store.send([sending(topic, "first")]))
    await asyncio.to_thread(entered.wait, 60)
    second = asyncio.ensure_future(store.send([sending(topic, "given up")]))
    await asyncio.sleep(0)
    second.cancel()
    third = asyncio.ensure_future(store.send([sending(topic, "third")]))
    await asyncio.sleep(0)
    go.set()
    ok([*await first, *await third])
    assert [message.body for message in await log_of(store, topic)] == [b"first", b"third"]


async def test_closing_waits_for_what_was_handed_in(world: World, topic: Topic) -> None:
    store = world.broker("b")
    waiting = [asyncio.ensure_future(store.send([sending(topic)])) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    world.forget(store)
    for each in waiting:
        ok(await each)
    assert len(await log_of(world.broker("c"), topic)) == 50


async def test_a_batch_has_bounds(world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.broker("b", lanes=LaneConfig(max_items=10, max_bytes=100))
    batches: list[list[int]] = []

    def counted(session: Session, work: Sequence[SendWork], *rest: object) -> object:
        batches.append([len(item.message.body) for item in work])
        return log.send(session, work, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_sends", _relaned(store, counted))
    sizes = [1] * 40 + [60] * 4 + [500]
    for answer in await asyncio.gather(*(store.send([sending(topic, "x" * size)]) for size in sizes)):
        ok(answer)
    assert sum(map(len, batches)) == len(sizes)
    assert max(map(len, batches)) == 10
    assert all(sum(batch) <= 100 or len(batch) == 1 for batch in batches)
    assert [message.offset for message in await log_of(store, topic)] == list(range(len(sizes)))


async def test_sources_are_kept(store: Store, topic: Topic) -> None:
    for source in (VerdictSource.PRODUCER, VerdictSource.CHECK, VerdictSource.OPERATOR):
        transaction_id = await prepared(store, topic)
        ok(await store.decide([commit(transaction_id, source)]))
        detail = await store.transaction(transaction_id)
        assert detail is not None
        assert detail.op is not None
        assert detail.op.source is source


async def test_a_whole_request_may_be_larger_than_a_batch(store: Store, topic: Topic) -> None:
    shop = await store.producer_group_id("shop")
    ids = [new_id() for _ in range(4096)]
    ok(await store.prepare([PrepareWork(i, shop, [Half(topic.topic_id, None, Message("orders", b"x"))]) for i in ids]))
    ok(await store.decide([commit(i) for i in ids]))
    assert [message.offset for message in await log_of(store, topic)] == list(range(4096))
