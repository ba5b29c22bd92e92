"""Deduplication: a topic takes in one message with the same key within its window, whoever brings it, and how often."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.place import Scheduled
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.errors import AlreadyExists, InvalidArgument, VerdictConflict
from broker.ports.log import Duplicate, SendWork
from broker.ports.transactions import Half, PrepareWork, TransactionOutcome
from broker.storage.engine.group_commit import LaneConfig
from conformance.world import (
    HOUR,
    POLICY,
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
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

DAY = 24 * HOUR


def keyed(topic: Topic, key: str = "order 1", **rest: object) -> SendWork:
    return sending(topic, dedup_key=key, **rest)  # type: ignore[arg-type]


async def preparing(store: Store, *halves: Half, first: int = 0, own_id: bytes | None = None) -> PrepareWork:
    return PrepareWork(own_id or new_id(), await store.producer_group_id("shop"), list(halves), first)


def is_prepared(outcome: object) -> bool:
    return isinstance(outcome, TransactionOutcome) and outcome.state is TransactionState.PREPARED


async def test_the_first_one_is_kept(world: World, store: Store, topic: Topic) -> None:
    first, second = keyed(topic), keyed(topic)
    place = (topic.queue_ids[0], 0)
    assert await store.send([first]) == [place]
    duplicate = Duplicate(first.message_id, 0, place)
    assert await store.send([second]) == [duplicate]
    assert await world.broker("b").send([second, first, keyed(topic, "order 2")]) == [
        duplicate,
        place,
        (topic.queue_ids[0], 1),
    ]
    assert (world.count("message"), world.count("op_record"), world.count("dedup_key")) == (2, 2, 2)


async def test_two_in_one_batch(world: World, store: Store, topic: Topic) -> None:
    work = [keyed(topic), keyed(topic), sending(topic), keyed(topic)]
    outcomes = await store.send([*work, work[0], work[1]])
    place = (topic.queue_ids[0], 0)
    duplicate = Duplicate(work[0].message_id, 0, place)
    assert outcomes == [place, duplicate, (topic.queue_ids[0], 1), duplicate, place, duplicate]
    assert world.count("message") == 2


async def test_topics_have_keys_of_their_own(store: Store, topic: Topic) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    assert await store.send([keyed(topic), keyed(other)]) == [(topic.queue_ids[0], 0), (other.queue_ids[0], 0)]


async def test_the_window_ends(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR, dedup_window=HOUR))
    first, second, third = keyed(topic), keyed(topic), keyed(topic)
    queue_id = topic.queue_ids[0]
    ok(await store.send([first]))
    world.clock.pass_time(HOUR - 1)
    assert await store.send([second]) == [Duplicate(first.message_id, 0, (queue_id, 0))]
    world.clock.pass_time(1)
    assert await store.send([third]) == [(queue_id, 1)]
    assert await store.send([first]) == [(queue_id, 0)], "known by its id"
    assert await store.send([second]) == [Duplicate(third.message_id, 0, (queue_id, 1))]
    world.clock.pass_time(HOUR)
    assert (await store.trim_dedup_keys(), await store.trim_dedup_keys(), world.count("dedup_key")) == (1, 0, 0)


async def test_a_waiting_message_owns_its_key(world: World, store: Store, topic: Topic) -> None:
    first = keyed(topic, deliver_at=START + 5)
    assert await store.send([first]) == [Scheduled(START + 5, topic.topic_id)]
    assert await store.send([keyed(topic)]) == [Duplicate(first.message_id, 0, Scheduled(START + 5, topic.topic_id))]
    world.clock.pass_time(5)
    assert (await store.move_due()).count == 1
    assert await store.send([keyed(topic)]) == [Duplicate(first.message_id, 0, (topic.queue_ids[0], 0))]


async def test_a_half_message_owns_its_key(world: World, store: Store, topic: Topic) -> None:
    work = await preparing(store, half(topic, "plain"), half(topic, "keyed", dedup_key="order 1"))
    ok(await store.prepare([work]))
    refused = of(AlreadyExists, (await store.send([keyed(topic)]))[0])
    assert refused.reason == "DEDUP_KEY_PENDING"
    assert work.transaction_id.hex()[:8] in refused.message
    other = await preparing(store, half(topic, "x"), half(topic, "y", dedup_key="order 1"))
    taken = of(AlreadyExists, (await store.prepare([other]))[0])
    assert (taken.reason, taken.field) == ("DEDUP_KEY_TAKEN", "messages[1].dedup_key")
    assert "PREPARED" in taken.message
    assert world.count("half_message") == 2, "nothing of the refused transaction is stored"
    assert is_prepared((await store.prepare([work]))[0]), "the same transaction again is fine"
    await decided(store, commit(work.transaction_id))
    assert await store.send([keyed(topic)]) == [Duplicate(work.transaction_id, 1, (topic.queue_ids[0], 1))]
    taken = of(AlreadyExists, (await store.prepare([other]))[0])
    assert "COMMITTED" in taken.message
    assert world.count("dedup_key") == 1


async def test_a_sent_message_keeps_half_messages_out(store: Store, topic: Topic) -> None:
    ok(await store.send([keyed(topic)]))
    works = [await preparing(store, half(topic, dedup_key=key)) for key in ("order 1", "order 2", "order 3")]
    outcomes = await store.prepare(works)
    assert of(AlreadyExists, outcomes[0]).reason == "DEDUP_KEY_TAKEN"
    assert all(map(is_prepared, outcomes[1:])), outcomes


async def test_a_refused_transaction_keeps_none_of_its_keys(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([keyed(topic, "b")]))
    work = await preparing(store, *(half(topic, dedup_key=key) for key in "abc"))
    of(AlreadyExists, (await store.prepare([work]))[0])
    assert (world.count("dedup_key"), world.count("half_message")) == (1, 0)
    ok(await store.send([keyed(topic, "a"), keyed(topic, "c")]))


async def test_a_rollback_gives_the_key_back(world: World, store: Store, topic: Topic) -> None:
    work = await preparing(store, half(topic, dedup_key="order 1"), half(topic, dedup_key="order 2"), half(topic))
    ok(await store.prepare([work]))
    await decided(store, rollback(work.transaction_id))
    assert world.count("dedup_key") == 0
    first = keyed(topic)
    assert await store.send([first]) == [(topic.queue_ids[0], 0)]
    of(VerdictConflict, (await store.prepare([work]))[0])
    assert world.count("dedup_key") == 1, "a repetition that comes too late takes no key"


async def test_a_rollback_leaves_keys_alone_that_others_took_over(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR, dedup_window=HOUR))
    work = await preparing(store, half(topic, dedup_key="order 1"))
    ok(await store.prepare([work]))
    world.clock.pass_time(HOUR)
    second = keyed(topic)
    assert await store.send([second]) == [(topic.queue_ids[0], 0)]
    assert is_prepared((await store.prepare([work]))[0])
    await decided(store, rollback(work.transaction_id))
    assert await store.send([keyed(topic)]) == [Duplicate(second.message_id, 0, (topic.queue_ids[0], 0))]


async def test_keys_of_one_transaction_differ(world: World, store: Store, topic: Topic) -> None:
    twice = await preparing(store, half(topic, "a", dedup_key="k"), half(topic, "b", dedup_key="k"))
    assert of(InvalidArgument, (await store.prepare([twice]))[0]).field == "messages[1].dedup_key"
    assert (world.count("dedup_key"), world.count("half_message")) == (0, 0)
    work = await preparing(store, half(topic, "a", dedup_key="k"))
    ok(await store.prepare([work]))
    more = await preparing(store, half(topic, "b", dedup_key="k"), first=1, own_id=work.transaction_id)
    of(InvalidArgument, (await store.prepare([more]))[0])
    fine = await preparing(store, half(topic, "b", dedup_key="l"), first=1, own_id=work.transaction_id)
    ok(await store.prepare([fine]))
    assert len((await decided(store, commit(work.transaction_id))).released) == 2


async def test_two_transactions_of_one_batch_with_one_key(world: World, store: Store, topic: Topic) -> None:
    works = [await preparing(store, half(topic, dedup_key="k")) for _ in range(3)]
    outcomes = await store.prepare([*works, await preparing(store, half(topic))])
    assert [is_prepared(outcome) for outcome in outcomes] == [True, False, False, True]
    assert works[0].transaction_id.hex()[:8] in of(AlreadyExists, outcomes[1]).message
    assert (world.count("dedup_key"), world.count("half_message")) == (1, 2)


async def test_the_owner_is_past_retention(world: World, store: Store, topic: Topic) -> None:
    first = keyed(topic)
    ok(await store.send([first]))
    world.clock.pass_time(HOUR + 1)
    assert await store.trim_ops(HOUR) == 1
    assert await store.send([keyed(topic), first]) == [Duplicate(first.message_id, 0, None)] * 2
    world.clock.pass_time(DAY)
    assert await store.send([first]) == [(topic.queue_ids[0], 1)]


async def test_a_new_window_is_for_new_keys(world: World, store: Store, topic: Topic) -> None:
    from broker.domain.topic import TopicChange

    ok(await store.send([keyed(topic)]))
    shorter = await store.update_topic(topic, TopicChange(dedup_window=1))
    ok(await store.send([keyed(shorter, "order 2")]))
    world.clock.pass_time(1)
    first, second = await store.send([keyed(topic), keyed(topic, "order 2")])
    assert isinstance(first, Duplicate)
    assert second == (topic.queue_ids[0], 2)


@pytest.mark.parametrize("how", ["send", "prepare", "both"])
async def test_two_brokers_at_the_same_moment(world: World, topic: Topic, how: str) -> None:
    """Exactly one message of each key gets in."""
    brokers = [world.broker(name, lanes=LaneConfig(reconnect_timeout=30)) for name in "abc"]
    shop = await brokers[0].producer_group_id("shop")
    for turn in range(15):
        keys = [f"{turn}.{n}" for n in range(5)]
        calls = []
        for number, broker in enumerate(brokers):
            own = keys if number % 2 else list(reversed(keys))
            if how == "send" or (how == "both" and number):
                calls.append(broker.send([keyed(topic, key) for key in own]))
            else:
                work = [PrepareWork(new_id(), shop, [half(topic, key, dedup_key=key)]) for key in own]
                calls.append(broker.prepare(work))  # type: ignore[arg-type]
        answers = await asyncio.gather(*calls)
        won = [isinstance(outcome, tuple) or is_prepared(outcome) for answer in answers for outcome in answer]
        assert sum(won) == len(keys), answers
    assert world.count("dedup_key") == 15 * 5
    assert world.count("message") + world.count("half_message") == 15 * 5


async def test_the_same_message_on_two_brokers(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    for turn in range(15):
        work = [keyed(topic, f"{turn}.{n}") for n in range(5)]
        one, two = await asyncio.gather(store.send(work), other.send(list(reversed(work))))
        assert one == list(reversed(two))
        assert all(isinstance(place, tuple) for place in one), one
    assert len(await log_of(store, topic)) == 75


async def test_a_prepare_racing_its_rollback_leaves_no_key(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    for turn in range(20):
        work = await preparing(store, half(topic, dedup_key=f"{turn}"))
        ok(await store.prepare([work]))
        await asyncio.gather(other.prepare([work]), store.decide([rollback(work.transaction_id)]))
        await store.sweep_decided_halves()
        assert (await store.send([keyed(topic, f"{turn}")])) == [(topic.queue_ids[0], turn)]


async def test_messages_without_a_key_touch_no_key(world: World, store: Store, topic: Topic) -> None:
    assert POLICY.max_checks == 3
    ok(await store.send([sending(topic)]))
    work = await preparing(store, half(topic))
    ok(await store.prepare([work]))
    await decided(store, rollback(work.transaction_id))
    assert world.count("dedup_key") == 0
