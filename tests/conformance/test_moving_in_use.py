"""Topics move while producers and consumers use them: what was acknowledged is true in the other cell."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.domain.group import EARLIEST
from broker.domain.place import InLog
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.errors import BrokerError, Moved, NotFound, StaleReceipt, StorageUnavailable
from broker.ports.delivery import AckOutcome, Claimed, ClaimWork
from broker.ports.transactions import PrepareWork, TransactionOutcome
from broker.storage.engine.clock import DatabaseClock
from broker.storage.engine.session import Session, StartOver
from broker.storage.groups import progress
from broker.storage.moving import aligning, arriving, copies, copying, sealing
from broker.storage.moving.columns import columns_of
from broker.storage.moving.copies import Copies
from broker.storage.moving.refusals import MoveRefused
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
    from broker.storage.moving.copying import Piece, Queue
    from broker.storage.moving.records import ProducerGroups

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


async def test_a_queue_that_grows_while_it_is_copied_comes_to_an_end(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece that is read brings as many new messages; if they are many, nothing is sealed."""
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one"), sending(orders, "two")]))
    mover, move = cells.begin(B, topic(), group())
    databases, writing, reads = cells.databases(), cells.worlds[0].session(), 0
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    real, (queue_id,) = copying.read_piece, orders.queue_ids

    def growing(session: Session, queue: Queue, after: int | None, groups: ProducerGroups) -> Piece:
        nonlocal reads
        reads += 1
        assert reads < 200, "it goes on for ever"
        piece = real(session, queue, after, groups)
        columns = columns_of("message").split(", ")
        for _ in piece.rows:
            writing.begin()
            row = writing.fetch(
                f"SELECT {', '.join(columns)} FROM message WHERE queue_id = ? ORDER BY log_offset DESC LIMIT 1",
                (queue_id,),
            )[0]
            new = dict(zip(columns, row, strict=True)) | {"log_offset": row[columns.index("log_offset")] + 1}
            writing.insert("message", ", ".join(columns), [tuple(new.values())])
            writing.run("UPDATE queue SET next_offset = next_offset + 1 WHERE queue_id = ?", (queue_id,))
            writing.commit()
        return piece

    told: list[str] = []
    monkeypatch.setattr(copying, "read_piece", growing)
    monkeypatch.setattr(copying, "AT_ONCE", 1)
    monkeypatch.setattr(copies, "TOLD_EVERY", 2)
    a_pass = ["copied 2 messages so far", "copied 2 messages"]
    Copies(databases, move, told.append).ahead()
    # What came while all was compared is copied behind it, and what came while keys were once more.
    assert told == a_pass * 3
    monkeypatch.setattr(copies, "LITTLE", 1)
    monkeypatch.setattr(copies, "BRIEF", 3600)
    told.clear()
    # What is copied that fast may be more.
    Copies(databases, move, told.append).ahead()
    assert told == a_pass * 3
    monkeypatch.setattr(copies, "BRIEF", -1)
    monkeypatch.setattr(copies, "MOST_PASSES", 3)
    told.clear()
    with pytest.raises(MoveRefused, match=r"filled about as fast as it is copied: .* 2 messages were new") as refused:
        Copies(databases, move, told.append).ahead()
    assert (refused.value.reason, told) == ("FILLED_TOO_FAST", a_pass * 3)
    with pytest.raises(MoveRefused, match="--resume"):
        mover.carry_on(move)
    assert mover.open_move() == move
    assert await found_in(cells) == [0]
    ok(await store.send([sending(orders, "it goes on")]))


async def test_what_comes_while_dedup_keys_are_compared_does_not_hold_up_the_move(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes far longer than to copy what came meanwhile."""
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one"), sending(orders, "two")]))
    _, move = cells.begin(B, topic(), group())
    databases, loop = cells.databases(), asyncio.get_running_loop()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    real = Copies._align

    def slow(self: Copies, parts: list[aligning.Part], *, sealed: bool) -> None:
        real(self, parts, sealed=sealed)
        sent = store.send([sending(orders, str(number)) for number in range(5)])
        ok(asyncio.run_coroutine_threadsafe(sent, loop).result())

    monkeypatch.setattr(Copies, "_align", slow)
    monkeypatch.setattr(copies, "LITTLE", 1)
    monkeypatch.setattr(copies, "BRIEF", -1)
    told: list[str] = []
    await asyncio.to_thread(Copies(databases, move, told.append).ahead)
    assert told == [f"copied {number} messages" for number in (2, 0, 5, 0, 5, 0)]


async def test_what_comes_while_the_log_is_compared_is_not_left_for_the_seal(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one", dedup_key="order 1")]))
    _, move = cells.begin(B, topic(), group())
    databases, loop = cells.databases(), asyncio.get_running_loop()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    real = Copies._compare

    def slow(self: Copies, queue: Queue) -> None:
        real(self, queue)
        sent = store.send([sending(orders, "two", dedup_key="order 2")])
        ok(asyncio.run_coroutine_threadsafe(sent, loop).result())

    monkeypatch.setattr(Copies, "_compare", slow)
    await asyncio.to_thread(Copies(databases, move, lambda _: None).ahead)
    assert [cells.count(B, table) for table in ("dedup_key", "message")] == [2, 2]


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


async def test_a_cell_tells_of_receipts_that_may_have_left_it(cells: Installation) -> None:
    store, orders, billing = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one")]))
    (held,) = receipts(await pull(store, billing, orders))
    assert await store.has_receipts([held])
    assert not await store.has_receipts([replace(held, token=held.token + 1)])
    assert await store.has_receipts([held], frozenset([billing.group_id]))
    assert not await store.has_receipts([held], frozenset([billing.group_id + 1]))
    mover, move = cells.begin(B, topic(), group())
    assert not await cells.store(B).has_receipts([held])
    cells.seal(move)
    with pytest.raises(Moved):
        await store.has_receipts([held])
    assert mover.carry_on(move).moved
    assert await cells.store(B).has_receipts([held])


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


async def test_a_group_that_is_sealed_is_not_told_that_it_never_read_its_topic(cells: Installation) -> None:
    store, orders, billing = await made_in(cells, 0)
    mover, move = cells.begin(B, topic(), group())
    cells.seal(move)
    with pytest.raises(NotFound) as refused:
        await store.seek_group(billing, orders.queue_ids, to=EARLIEST, offset=None)
    assert refused.value.reason == "GROUP_NOT_FOUND"
    mover.give_up(move)
    await store.seek_group(billing, orders.queue_ids, to=EARLIEST, offset=None)


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
