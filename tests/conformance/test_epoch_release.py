"""How an epoch gets into the log: in one piece for whoever reads, and with little done while its queues are locked."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.ports.epochs import Epoch, EpochCommitted, EpochWrites, SinkWork
from broker.ports.transactions import Half, PrepareWork
from broker.storage.adapters import epochs as epochs_adapter
from broker.storage.engine.dialects import DIALECTS
from broker.storage.engine.group_commit import LaneConfig
from broker.storage.engine.session import Session
from broker.storage.engine.statements import Statement
from broker.storage.log import bulk_release
from broker.storage.transactions import epoch_writes
from conformance.world import HOUR, World, everywhere, half, log_of, new_id, ok, sending, stored_bytes_are_exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

EPOCH = Epoch("archive", "query", 0, False)
SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


async def written(store: Store, halves: Sequence[Half], attempt: bytes) -> bytes:
    """A transaction of the epoch; its id."""
    work = PrepareWork(new_id(), await store.producer_group_id("%SINK%"), list(halves), checked=False)
    assert await store.prepare_epoch(SinkWork(EPOCH, attempt, work)) is False
    return work.transaction_id


@pytest.mark.parametrize("whole", [True, False])
async def test_every_kind_of_message(world: World, store: Store, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that are copied whole, and those that are looked at message by message, give the same log."""
    if not whole:
        monkeypatch.setattr(bulk_release, "shapes", lambda *_: {})
    one = await store.create_topic("one", TopicSettings(1, HOUR))
    ranked = await store.create_topic("ranked", TopicSettings(1, HOUR, priority_levels=2))
    attempt, later = new_id(), world.clock.now() + 60_000_000
    transactions = [
        [half(one, f"plain{n}", tag="t", properties={"n": f"{n}"}) for n in range(5)],
        [half(one, "keyed", keys=("k1", "k2")), half(one, "more")],
        [half(one, "grouped", queue_no=0, message_group="g")],
        [half(one, "both"), half(ranked, "both")],
        [half(ranked, "low"), half(ranked, "high", priority=1)],
        [half(one, "later", deliver_at=later)],
        [half(ranked, "plain")],
        [half(one, "last")],
    ]
    ids = [await written(store, halves, attempt) for halves in transactions]
    ok(await store.send([sending(one, "before")]))
    done = await store.commit_epoch(EPOCH, {attempt: 15})
    assert (done.already, done.messages) == (False, 15)
    assert [(m.offset, m.body.decode()) for m in await log_of(store, one)] == list(
        enumerate(["before", *[f"plain{n}" for n in range(5)], "keyed", "more", "grouped", "both", "last"])
    )
    first = (await log_of(store, one))[1]
    assert (first.tag, first.properties, first.transaction_id, first.position) == ("t", {"n": "0"}, ids[0], 0)
    assert [m.body for m in await log_of(store, ranked)] == [b"both", b"low", b"plain"]
    assert [m.body for m in await log_of(store, ranked, 1)] == [b"high"]
    assert done.end_offsets[one.topic_id, one.queue_ids[0]] == 11
    for own, halves in zip(ids, transactions, strict=True):
        detail = await store.transaction(own)
        assert detail is not None
        assert detail.op is not None
        assert (detail.summary.state, len(detail.op.released)) == (TransactionState.COMMITTED, len(halves))
    detail = await store.transaction(ids[0])
    assert detail is not None
    assert detail.op is not None
    assert tuple(detail.op.released) == tuple((one.queue_ids[0], offset) for offset in range(1, 6))
    assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)
    assert (world.count("message_key"), world.count("scheduled_message")) == (2, 1)
    stored_bytes_are_exact(world)


async def test_a_topic_that_is_gone_holds_back_all(world: World, store: Store, topic: Topic) -> None:
    attempt = new_id()
    await written(store, [half(topic, "a")], attempt)
    session = world.session()
    session.begin()
    session.run("UPDATE topic SET deleted_at = 1")
    session.commit()
    store.directory.clear()
    with pytest.raises(Exception, match="was deleted"):
        await store.commit_epoch(EPOCH, {attempt: 1})
    assert (await store.find_sink("archive")).committed_epoch is None
    assert world.count("half_message") == 1


async def test_little_is_done_while_queues_are_locked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message costs while others wait for its queue: no statement, no row that travels, few characters."""
    topic, per, count = await store.create_topic("wide", TopicSettings(2, HOUR)), 200, 20
    attempt = new_id()
    for _ in range(count):
        await written(store, [half(topic, "x" * 100) for _ in range(per)], attempt)
    ran: list[tuple[str, int, int]] = []
    real = Session.execute_all

    def execute_all(session: Session, statements: Sequence[Statement]) -> Any:
        answers = real(session, statements)
        for statement, answer in zip(statements, answers, strict=True):
            text = statement.sql if not statement.rows else "".join(map(str, statement.rows))
            ran.append((statement.sql, len(text), len(answer.rows)))
        return answers

    monkeypatch.setattr(Session, "execute_all", execute_all)
    assert (await store.commit_epoch(EPOCH, {attempt: per * count})).messages == per * count
    first = next(
        index for index, each in enumerate(ran) if each[0] in {dialect.take_offsets for dialect in DIALECTS.values()}
    )
    locked = ran[first:]
    assert not [sql for sql, *_ in locked if sql.startswith("SELECT")]
    assert len(locked) < 4 * count
    assert sum(length for _, length, _ in locked) < 40 * per * count
    assert sum(rows for *_, rows in locked) <= count
    assert sum(sql.startswith("INSERT INTO message") for sql, *_ in locked) == count


@SERVERS
async def test_others_go_on_while_an_epoch_is_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is in the log, and nobody sees it; what does not need its queues does not wait."""
    # What waits for the epoch's queues is not given up before the test lets it go.
    patient = LaneConfig(reconnect_timeout=100)
    store, second = [world.broker(name, lanes=patient) for name in ("b", "c")]
    topic, other = [await store.create_topic(name, TopicSettings(2, HOUR)) for name in ("epoch", "other")]
    attempt = new_id()
    for number in range(40):
        await written(store, [half(topic, f"{number}")], attempt)
    reached, go = threading.Event(), threading.Event()
    real, calls = bulk_release.release, []

    def held(*given: Any) -> bool:
        calls.append(given)
        if len(calls) == 3:
            reached.set()
            assert go.wait(120)
        return real(*given)

    monkeypatch.setattr(bulk_release, "release", held)
    committing = asyncio.create_task(store.commit_epoch(EPOCH, {attempt: 40}))
    try:
        assert await asyncio.to_thread(reached.wait, 60)
        # A message for its topic comes first, and must not keep others waiting.
        blocked = [asyncio.create_task(broker.send([sending(topic, "100")])) for broker in (store, second)]
        for broker in (store, second):
            for _ in range(20):
                # Only a hang takes as long.
                ok(await asyncio.wait_for(broker.send([sending(other)]), 30))
            assert await everywhere(broker, topic) == []
            state = await asyncio.wait_for(broker.find_sink("archive"), 30)
            assert (state.committed_epoch, state.waiting) == (None, 40)
        assert not committing.done()
    finally:
        go.set()
    done: EpochCommitted = await committing
    assert done.messages == 40
    for each in blocked:
        ok(await each)
    assert sorted(int(m.body) for m in await everywhere(second, topic)) == [*range(40), 100, 100]
    assert len(await everywhere(store, other)) == 40


@SERVERS
async def test_no_lane_waits_for_an_epoch_with_many_transactions_unawares(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs_adapter, "LARGE_EPOCH", 40)
    topic = await store.create_topic("epoch", TopicSettings(1, HOUR))
    work = [PrepareWork(new_id(), 1, [half(topic, "a"), half(topic, "b")], checked=False) for _ in range(20)]
    seen: list[bool] = []
    real = epoch_writes.append

    def looked_at(*given: Any) -> None:
        seen.extend(lane._runner.skips_locked for lane in (store._sends, store._verdicts, store._moves))
        real(*given)

    monkeypatch.setattr(epoch_writes, "append", looked_at)
    assert (await store.commit_epoch(EPOCH, {}, EpochWrites(work))).messages == 40
    assert seen == [True] * 3
    assert not any(lane._runner.skips_locked for lane in (store._sends, store._verdicts, store._moves))


@SERVERS
async def test_no_lane_waits_for_a_large_epoch_unawares(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for the second after which it would ask before it waits."""
    monkeypatch.setattr(epochs_adapter, "LARGE_EPOCH", 40)
    topic = await store.create_topic("epoch", TopicSettings(1, HOUR))
    attempt = new_id()
    await written(store, [half(topic, f"{number}") for number in range(40)], attempt)
    seen: list[bool] = []
    real = bulk_release.release

    def looked_at(*given: Any) -> bool:
        seen.extend(lane._runner.skips_locked for lane in (store._sends, store._verdicts, store._moves))
        return real(*given)

    monkeypatch.setattr(bulk_release, "release", looked_at)
    assert (await store.commit_epoch(EPOCH, {attempt: 40})).messages == 40
    assert seen == [True] * 3
    assert not any(lane._runner.skips_locked for lane in (store._sends, store._verdicts, store._moves))
