"""Topics move while producers and consumers use them: what was acknowledged is true in the other cell."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.domain.place import InLog
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.errors import BrokerError, Moved, NotFound, StaleReceipt, StorageUnavailable
from broker.ports.delivery import AckOutcome, Claimed, ClaimWork
from broker.ports.transactions import PrepareWork, TransactionOutcome
from broker.storage.engine.clock import DatabaseClock
from broker.storage.engine.session import Session, StartOver
from broker.storage.groups import progress
from broker.storage.moving import aligning, arriving, sealing
from broker.storage.moving.copies import Copies
from broker.storage.retention import trimming
from conformance.moving import B, Installation, found_in, group, made_in, the_topic, topic
from conformance.submitting import committed, service_on, texts
from conformance.world import (
    HOUR,
    LEASE,
    ack,
    acks,
    bodies,
    commit,
    everywhere,
    half,
    new_id,
    of,
    ok,
    pull,
    receipts,
    refusal,
    rollback,
    sending,
    stored_bytes_are_exact,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

PRODUCERS = 4
BEFORE, AFTER = 300, 20
"""Messages before the move begins, and of each producer after it has ended."""


@dataclass
class Traffic:
    """Producers and consumers that ask the other cell when one does not know what they ask for."""

    cells: Installation
    topic: Topic
    group: ConsumerGroup
    sent: set[str] = field(default_factory=set)
    handled: Counter[str] = field(default_factory=Counter)
    left: int = AFTER
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def somewhere(self, call: Callable[[Store], Awaitable[object]]) -> object:
        """What the cell answers that knows what is asked for."""
        while True:
            for cell in (0, B):
                try:
                    outcome = await call(self.cells.store(cell))
                except (NotFound, StorageUnavailable):
                    continue
                if not isinstance(outcome, NotFound | StorageUnavailable):
                    return outcome
            await asyncio.sleep(0.01)

    async def produce(self, name: str) -> None:
        number = after = 0
        while after < AFTER:
            body = f"{name}.{number}"
            if number % 3:
                item = sending(self.topic, body, keys=(body,))

                async def send(store: Store, item: object = item) -> object:
                    return (await store.send([item]))[0]  # type: ignore[list-item]

                outcome = await self.somewhere(send)
                assert isinstance(outcome, tuple), outcome
            else:
                await self._transaction(body)
            self.sent.add(body)
            if len(self.sent) >= BEFORE:
                self.busy.set()
            number += 1
            after += self.moved.is_set()

    async def _transaction(self, body: str) -> None:
        own = new_id()

        async def prepare(store: Store) -> object:
            producers = await store.producer_group_id("shop")
            return (await store.prepare([PrepareWork(own, producers, [half(self.topic, body)])]))[0]

        async def decide(store: Store) -> object:
            return (await store.decide([commit(own)]))[0]

        outcome = await self.somewhere(prepare)
        assert not isinstance(outcome, BrokerError), outcome
        outcome = await self.somewhere(decide)
        assert isinstance(outcome, TransactionOutcome), outcome
        assert outcome.state is TransactionState.COMMITTED

    async def consume(self, name: str) -> None:
        while not (self.moved.is_set() and self.left == 0 and set(self.handled) == self.sent):
            work = ClaimWork(self.group, [self.topic], name, 10, 1 << 20, LEASE)

            async def claim(store: Store, work: ClaimWork = work) -> object:
                return (await store.claim([work]))[0]

            held = await self.somewhere(claim)
            assert isinstance(held, Claimed), held
            for part in held.parts:
                for receipt, body in zip(receipts([part]), bodies([part]), strict=True):
                    await self._ack(receipt, body)
            await asyncio.sleep(0)

    async def _ack(self, receipt: object, body: str) -> None:
        while True:
            for cell in (0, B):
                outcome = (await self.cells.store(cell).settle([ack(receipt)]))[0]  # type: ignore[arg-type]
                if isinstance(outcome, AckOutcome) and not outcome.refused:
                    self.handled[body] += 1
                    return
                assert isinstance(refusal(outcome), StaleReceipt | StorageUnavailable), outcome
            await asyncio.sleep(0.01)


async def test_a_topic_in_use_moves_and_nothing_is_lost_doubled_or_handled_twice(cells: Installation) -> None:
    _, orders, billing = await made_in(cells, 0, queue_count=4)
    traffic = Traffic(cells, orders, billing)
    producers = [asyncio.create_task(traffic.produce(f"p{n}")) for n in range(PRODUCERS)]
    consumers = [asyncio.create_task(traffic.consume(f"c{n}")) for n in range(2)]
    await traffic.busy.wait()
    ended = await asyncio.to_thread(cells.move, B, topic(), group())
    assert ended.moved
    traffic.moved.set()
    await asyncio.gather(*producers)
    traffic.left = 0
    await asyncio.gather(*consumers)
    assert await found_in(cells) == [B]
    there = Counter(message.body.decode() for message in await everywhere(cells.store(B), await the_topic(cells, B)))
    assert there == Counter(traffic.sent)
    assert traffic.handled == Counter(traffic.sent)
    assert cells.count(B, "lease") == 0
    for world in cells.worlds:
        stored_bytes_are_exact(world)


async def test_an_ack_in_doubt_is_not_taken_for_done_when_its_lease_moves(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The COMMIT was undone; then all is moved; then the broker looks again, and finds no lease."""
    _, orders, billing = await made_in(cells, 0)
    store = cells.worlds[0].broker("in doubt", clock=DatabaseClock())
    await store.start()
    ok(await store.send([sending(orders, "one")]))
    held = await pull(store, billing, orders)
    mover, move = cells.begin(B, topic(), group())
    real = Session.commit

    def lost(session: Session) -> None:
        if session.reading:
            real(session)
            return
        monkeypatch.setattr(Session, "commit", real)
        session.rollback()
        assert mover.carry_on(move).moved
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(Session, "commit", lost)
    of(Moved, (await store.settle([ack(receipts(held)[0])]))[0])
    there = cells.store(B)
    ok(await there.settle(acks(held)))


async def test_progress_that_is_recorded_while_its_group_leaves_is_refused(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, billing = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one")]))
    cells.move(B, topic(), group())
    # It had looked before whether the group has joined.
    monkeypatch.setattr(progress, "join", lambda *_: set())
    with pytest.raises(NotFound):
        await store.commit_offsets(billing, orders, {orders.queue_ids[0]: 1})


async def test_retention_that_was_under_way_deletes_nothing_of_what_is_sealed(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one")]))
    _, move = cells.begin(B, topic(), group())
    databases = cells.databases()
    databases.write(0, lambda session: sealing.seal(session, move.number, move.names, 1))
    (queue_id,) = orders.queue_ids

    def trim(session: Session) -> None:
        trimming.drop_oldest(session, orders.topic_id, queue_id, 0, trimming.oldest_messages(session, queue_id, 0, 10))

    session = cells.worlds[0].session()
    session.begin()
    with pytest.raises(StartOver):
        trim(session)
    session.rollback()
    cells.worlds[0].clock.pass_time(2 * HOUR)
    assert await store.trim_queue(orders, queue_id) == 0
    assert await store.deleted_topics(0, 10) == []
    assert cells.count(0, "message") == 1


async def test_dedup_keys_that_were_read_before_the_seal_are_not_written_after_it(cells: Installation) -> None:
    """A mover has read a key, and stands still; the key is freed; another mover ends the move."""
    store, orders, _ = await made_in(cells, 0)
    producers = await store.producer_group_id("shop")
    own = new_id()
    ok(await store.prepare([PrepareWork(own, producers, [half(orders, "dropped", dedup_key="d")])]))
    mover, move = cells.begin(B, topic(), group())
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    keys = aligning.dedup_keys(orders.topic_id)
    one, rows = databases.read(0, lambda session: aligning.read_range(session, keys, None))
    assert len(rows) == 1
    ok(await store.decide([rollback(own)]))
    databases.write(0, lambda session: sealing.seal(session, move.number, move.names, 1))
    copies = Copies(databases, move, lambda _: None)
    copies.rest()
    databases.write(B, lambda session: aligning.align(session, move.number, one, rows, sealed=False))
    ends = copies.ends()
    databases.write(
        B,
        lambda session: arriving.decide(session, move.number, move.names, copies.sealed, ends, copies.groups, 1),
    )
    assert mover.carry_on(move).moved
    assert cells.count(B, "dedup_key") == 0
    moved = await the_topic(cells, B)
    assert isinstance((await cells.store(B).send([sending(moved, "anew", dedup_key="d")]))[0], InLog)


async def test_submissions_wait_for_a_topic_that_is_away_and_hold_up_no_other(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    stock = await store.create_topic("stock", TopicSettings(1, HOUR))
    service = service_on(store)
    mover, move = cells.begin(B, topic(), group())
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    databases.write(0, lambda session: sealing.seal(session, move.number, move.names, 1))
    store.forget_topics(["orders"])
    committed(cells.worlds[0], "one", "two")
    committed(cells.worlds[0], "others go on", topic="stock")
    assert await service.release() == 1
    assert await texts(store, stock) == ["others go on"]
    mover.give_up(move)
    until = time.monotonic() + 60
    while cells.count(0, "submission"):
        assert time.monotonic() < until
        await service.release()
    assert await texts(store, orders) == ["one", "two"]
    assert cells.count(0, "refused_submission") == 0
