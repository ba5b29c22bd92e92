"""Recall: a message that waits for its time is taken back, or it is too late, and never both."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from broker.domain.check_policy import SECOND
from broker.domain.place import Recalled, Scheduled
from broker.errors import BrokerError, NotFound, Refused
from broker.ports.log import RecallWork
from broker.ports.transactions import PrepareWork
from conformance.world import (
    HOUR,
    START,
    World,
    commit,
    decided,
    half,
    log_of,
    new_id,
    of,
    ok,
    rollback,
    sending,
    stored_bytes_are_exact,
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

SOON = START + 10 * SECOND


async def recalled(store: Store, transaction_id: bytes, position: int = 0) -> int | BrokerError:
    return (await store.recall([RecallWork(transaction_id, position)]))[0]


async def committed(store: Store, topic: Topic, due: int = SOON) -> bytes:
    transaction_id = new_id()
    halves = [half(topic, f"{n}", deliver_at=due + n) for n in range(3)]
    ok(await store.prepare([PrepareWork(transaction_id, await store.producer_group_id("shop"), halves)]))
    await decided(store, commit(transaction_id))
    return transaction_id


async def test_a_waiting_message_is_taken_back(world: World, store: Store, topic: Topic) -> None:
    work = sending(topic, deliver_at=SOON)
    ok(await store.send([work]))
    world.clock.pass_time(SECOND)
    assert await recalled(store, work.message_id) == START + SECOND
    world.clock.pass_time(SECOND)
    assert await recalled(world.broker("b"), work.message_id) == START + SECOND, "again: the same answer"
    assert await store.send([work]) == [Recalled(START + SECOND, topic.topic_id, SOON)], "sent again, it stays recalled"
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 0
    assert (await log_of(store, topic), world.count("scheduled_message")) == ([], 0)


async def test_one_message_of_a_transaction(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await committed(store, topic)
    assert await recalled(store, transaction_id, 1) == START
    of(NotFound, await recalled(store, transaction_id, 3))
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 2
    assert [message.body for message in await log_of(store, topic)] == [b"0", b"2"]
    queue_id = topic.queue_ids[0]
    outcome = await decided(store, commit(transaction_id))
    assert list(outcome.released) == [(queue_id, 0), Recalled(START, topic.topic_id, SOON + 1), (queue_id, 1)]
    stored_bytes_are_exact(world)


async def test_many_in_one_call(world: World, store: Store, topic: Topic) -> None:
    transaction_id, other = await committed(store, topic), sending(topic, deliver_at=SOON)
    released, unknown = sending(topic), new_id()
    ok(await store.send([other, released]))
    work = [(transaction_id, 2), (other.message_id, 0), (released.message_id, 0), (unknown, 0), (transaction_id, 0)]
    outcomes = await store.recall([RecallWork(*item) for item in [*work, work[0]]])
    assert [outcomes[n] for n in (0, 1, 4, 5)] == [START] * 4
    assert of(Refused, outcomes[2]).reason == "ALREADY_RELEASED"
    assert of(NotFound, outcomes[3]).reason == "MESSAGE_NOT_FOUND"
    assert world.count("scheduled_message") == 1


async def test_what_cannot_be_recalled(world: World, store: Store, topic: Topic) -> None:
    transaction_id = new_id()
    work = PrepareWork(transaction_id, await store.producer_group_id("shop"), [half(topic, deliver_at=SOON)])
    ok(await store.prepare([work]))
    assert of(Refused, await recalled(store, transaction_id)).reason == "NOT_COMMITTED"
    await decided(store, rollback(transaction_id))
    assert of(NotFound, await recalled(store, transaction_id)).reason == "MESSAGE_NOT_FOUND"
    later = await committed(store, topic)
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 3
    assert of(Refused, await recalled(store, later)).reason == "ALREADY_RELEASED"


async def test_a_recall_frees_the_dedup_key(world: World, store: Store, topic: Topic) -> None:
    one, two = (sending(topic, body, deliver_at=SOON, dedup_key="k") for body in "ab")
    ok(await store.send([one]))
    assert await recalled(store, one.message_id) == START
    assert world.count("dedup_key") == 0
    assert await store.send([two]) == [Scheduled(SOON, topic.topic_id)]


async def test_a_recall_racing_the_move(world: World, store: Store, topic: Topic) -> None:
    """Exactly one of them has each message."""
    other = world.broker("b")
    winners = Counter[bool]()
    for _ in range(15):
        due = world.clock.now() + SECOND
        ids = [await committed(store, topic, due) for _ in range(4)]
        sent = [sending(topic, deliver_at=due + n % 2) for n in range(4)]
        ok(await store.send(sent))
        world.clock.pass_time(2 * SECOND)
        before = len(await log_of(store, topic))
        wanted = [(i, position) for i in ids for position in range(3)] + [(item.message_id, 0) for item in sent]
        taken, *_ = await asyncio.gather(
            other.recall([RecallWork(*item) for item in reversed(wanted)]), store.move_due(), store.move_due()
        )
        while (await store.move_due()).count:
            pass
        back = {item for item, outcome in zip(reversed(wanted), taken, strict=True) if isinstance(outcome, int)}
        for item, outcome in zip(reversed(wanted), taken, strict=True):
            if item not in back:
                assert of(Refused, outcome).reason == "ALREADY_RELEASED"
        moved = [(m.transaction_id, m.position) for m in (await log_of(store, topic))[before:]]
        assert len(set(moved)) == len(moved)
        assert set(moved) == set(wanted) - back
        for transaction_id, position in wanted:
            again = await recalled(store, transaction_id, position)
            assert isinstance(again, int) == ((transaction_id, position) in back)
            winners[isinstance(again, int)] += 1
    assert sum(winners.values()) == 15 * 16
    assert world.count("scheduled_message") == 0
    stored_bytes_are_exact(world)
