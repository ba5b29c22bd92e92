"""What could not be handled ends in the group's dead letter topic, once, with where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.group import ConsumerGroup, GroupSettings
from broker.domain.message import Message
from broker.domain.topic import Topic, TopicSettings
from broker.ports.delivery import JoinWork, NackWork, ReceiptOutcome
from broker.ports.log import SendWork
from conformance.world import (
    HOUR,
    LEASE,
    World,
    acks,
    bodies,
    log_of,
    new_id,
    ok,
    pull,
    receipts,
    sending,
)

if TYPE_CHECKING:
    from broker.storage.adapters.store import Store


async def dead(store: Store, group: ConsumerGroup) -> Topic:
    topic = await store.find_topic(dead_letter_topic(group.name))
    assert topic is not None
    return topic


@pytest.mark.parametrize("how", ["expiry", "nack"])
@pytest.mark.parametrize("most", [1, 2, 5])
async def test_a_message_is_tried_exactly_so_often(
    world: World, store: Store, topic: Topic, how: str, most: int
) -> None:
    group = await store.create_group("tired", GroupSettings(most), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic)]))
    attempts = []
    for _ in range(most * 2 + 2):
        held = await pull(store, group, topic)
        attempts += [each.attempt for each in held]
        if how == "nack":
            ok(await store.settle([NackWork(receipt, delay=0) for receipt in receipts(held)]))
        else:
            world.clock.pass_time(LEASE)
    assert attempts == list(range(1, most + 1))
    assert [message.body for message in await log_of(store, await dead(store, group))] == [b"hello"]
    assert world.count("lease") == 0


async def test_a_dead_letter_is_the_message_and_its_origin(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    message = Message("orders", b"\x00\xff", "tag", ("k1", "k2"), {"colour": "red"}, "g")
    born, message_id = world.clock.now(), new_id()
    ok(await store.send([sending(topic, "first"), SendWork(message_id, topic.topic_id, 0, message)]))
    ok(await store.settle(acks(await pull(store, group, topic, limit=1))))
    for attempt in range(group.settings.max_attempts):
        (receipt,) = receipts(await pull(store, group, topic))
        (outcome,) = await store.settle([NackWork(receipt, delay=0, reason=f"boom {attempt}")])
        world.clock.pass_time(1)
    target = await dead(store, group)
    assert isinstance(outcome, ReceiptOutcome)
    assert outcome.dead_letter == (target.queue_ids[0], 0)
    (letter,) = await log_of(store, target)
    assert (letter.body, letter.tag, letter.keys, letter.message_group) == (b"\x00\xff", "tag", ["k1", "k2"], "g")
    assert letter.properties == {
        "colour": "red",
        "halfmq.origin-topic": "orders",
        "halfmq.origin-queue": "0",
        "halfmq.origin-offset": "1",
        "halfmq.attempts": "3",
        "halfmq.reason": "boom 2",
    }
    assert (letter.transaction_id, letter.born_at, letter.stored_at) == (message_id, born, world.clock.now() - 1)


async def test_only_the_hopeless_of_a_batch_die(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, f"{n}") for n in range(5)]))
    for _ in range(group.settings.max_attempts - 1):
        await pull(store, group, topic)
        world.clock.pass_time(LEASE)
    held = receipts(await pull(store, group, topic))
    outcomes = await store.settle(
        [NackWork(held[1], reason="a"), NackWork(held[3], reason="b"), NackWork(held[2], untried=True)]
    )
    ok(outcomes)
    letters = {place.dead_letter for place in outcomes[:2]}  # type: ignore[union-attr]
    target = await dead(store, group)
    assert letters == {(target.queue_ids[0], 0), (target.queue_ids[0], 1)}
    reasons = {message.body: message.properties["halfmq.reason"] for message in await log_of(store, target)}
    assert reasons == {b"1": "a", b"3": "b"}
    assert bodies(await pull(store, group, topic)) == ["2"]
    world.clock.pass_time(LEASE)
    await pull(store, group, topic)
    assert sorted(m.body for m in await log_of(store, target)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_reason_of_the_last_failure_is_kept_when_the_lease_expires(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    ok(await store.send([sending(topic)]))
    (receipt,) = receipts(await pull(store, group, topic))
    ok(await store.settle([NackWork(receipt, delay=0, reason="no stock")]))
    for _ in range(group.settings.max_attempts):
        await pull(store, group, topic)
        world.clock.pass_time(LEASE)
    await pull(store, group, topic)
    (letter,) = await log_of(store, await dead(store, group))
    assert letter.properties["halfmq.reason"] == "no stock"


async def test_dead_letters_can_be_consumed(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, f"{n}") for n in range(3)]))
    for _ in range(group.settings.max_attempts + 1):
        await pull(store, group, topic)
        world.clock.pass_time(LEASE)
    repair, target = (
        await store.create_group("repair", GroupSettings(3), TopicSettings(1, HOUR)),
        await dead(store, group),
    )
    await store.join(JoinWork(repair, [target], "consumer", {}))
    assert bodies(await pull(store, repair, target)) == ["0", "1", "2"]


async def test_a_group_whose_dead_letter_topic_is_gone_goes_on(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """The topic is made again; a hopeless message must not stand in the way of all others."""
    await store.delete_topic(await dead(store, group))
    ok(await store.send([sending(topic, "hopeless")]))
    for _ in range(group.settings.max_attempts):
        await pull(store, group, topic)
        world.clock.pass_time(LEASE)
    ok(await store.send([sending(topic, "fine")]))
    assert bodies(await pull(store, group, topic)) == ["fine"]
    assert [message.body for message in await log_of(store, await dead(store, group))] == [b"hopeless"]
