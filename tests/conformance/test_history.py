"""What consumers did with a message, kept for its timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.check_policy import SECOND
from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork, NackWork
from broker.ports.groups import DeadLetterSearch
from broker.ports.log import SendWork
from broker.ports.queries import TimelineKind
from conformance.world import HOUR, LEASE, World, ack, acks, new_id, ok, pull, receipts, sending, text

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

DELIVERED, ACKED, NACKED = TimelineKind.DELIVERED, TimelineKind.ACKED, TimelineKind.NACKED
DEAD_LETTERED, REDRIVEN = TimelineKind.DEAD_LETTERED, TimelineKind.REDRIVEN


async def told(store: Store, topic: Topic, offset: int) -> list[tuple[TimelineKind, str, str, int, str]]:
    """Kind, group, consumer, attempt and reason of each event."""
    return [
        (event.kind, event.group, event.client_id, event.number, event.reason)
        for event in await store.deliveries_of(topic.queue_ids[0], offset)
    ]


async def test_each_message_has_its_own_story(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, str(n)) for n in range(4)]))
    held = await pull(store, group, topic, owner="ann")
    first, second, third, _ = receipts(held)
    world.clock.pass_time(SECOND)
    ok(await store.settle([ack(first), ack(third), NackWork(second, delay=SECOND, reason="no stock")]))
    world.clock.pass_time(LEASE)
    again = await pull(world.broker("b"), group, topic, owner="bob")
    ok(await store.settle(acks(again)))
    assert await told(store, topic, 0) == [(DELIVERED, "billing", "ann", 1, ""), (ACKED, "billing", "ann", 1, "")]
    assert await told(store, topic, 1) == [
        (DELIVERED, "billing", "ann", 1, ""),
        (NACKED, "billing", "ann", 1, "no stock"),
        (DELIVERED, "billing", "bob", 2, ""),
        (ACKED, "billing", "bob", 2, ""),
    ]
    assert await told(store, topic, 3) == [
        (DELIVERED, "billing", "ann", 1, ""),
        (DELIVERED, "billing", "bob", 2, ""),
        (ACKED, "billing", "bob", 2, ""),
    ]
    times = [event.happened_at for event in await store.deliveries_of(topic.queue_ids[0], 1)]
    assert times == sorted(times)
    assert times[1] - times[0] == SECOND


async def test_a_batch_is_one_record(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, str(n)) for n in range(300)]))
    ok(await store.settle(acks(await pull(store, group, topic, limit=300))))
    assert world.count("delivery_event") == 2
    assert [len(await told(store, topic, offset)) for offset in (0, 150, 299)] == [2, 2, 2]


async def test_dead_letters_and_redrives(world: World, store: Store, topic: Topic) -> None:
    group = await store.create_group("tired", GroupSettings(1), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "c", {}))
    ok(await store.send([sending(topic, str(n)) for n in range(3)]))
    held = await pull(store, group, topic, owner="ann")
    ok(await store.settle([ack(receipts(held)[1]), *[NackWork(r, reason="no") for r in receipts(held)[::2]]]))
    await store.redrive(DeadLetterSearch(group), republish=False)
    await pull(store, group, topic, owner="bob")
    assert await told(store, topic, 2) == [
        (DELIVERED, "tired", "ann", 1, ""),
        (DEAD_LETTERED, "tired", "ann", 1, "no"),
        (REDRIVEN, "tired", "", 0, ""),
        (DELIVERED, "tired", "bob", 1, ""),
    ]
    dead = await store.find_topic("%DLQ%tired")
    assert dead is not None
    for offset, letter in ((0, 0), (2, 1)):
        events = await store.deliveries_of(topic.queue_ids[0], offset)
        assert [event.place for event in events if event.kind is DEAD_LETTERED] == [(dead.queue_ids[0], letter)]
    assert await told(store, topic, 1) == [(DELIVERED, "tired", "ann", 1, ""), (ACKED, "tired", "ann", 1, "")]
    # Given up when its lease ran out.
    world.clock.pass_time(LEASE)
    await pull(store, group, topic)
    assert (await told(store, topic, 2))[-1] == (DEAD_LETTERED, "tired", "bob", 1, "no")


async def test_behind_its_head_a_message_group_counts_anew(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text(f"a{n}", message_group="a")) for n in range(2)]))
    for _ in range(2):
        ok(await store.settle([NackWork(receipts(await pull(store, group, topic))[0], delay=0, reason="no")]))
    ok(await store.settle(acks(await pull(store, group, topic))))
    assert [(kind, number) for kind, _, _, number, _ in await told(store, topic, 0)] == [
        (DELIVERED, 1),
        (NACKED, 1),
        (DELIVERED, 2),
        (NACKED, 2),
        (DELIVERED, 3),
        (ACKED, 3),
    ]
    assert [(kind, number) for kind, _, _, number, _ in await told(store, topic, 1)][:3] == [(DELIVERED, 1)] * 3


async def test_a_broadcasting_group_tells_the_consumer(store: Store, topic: Topic) -> None:
    group = await store.create_group(
        "all", GroupSettings(mode=GroupMode.BROADCASTING, start_at=EARLIEST), TopicSettings(1, HOUR)
    )
    ok(await store.send([sending(topic)]))
    for name in ("ann", "bob"):
        member = await store.join(JoinWork(group, [topic], name, {}))
        ok(await store.settle(acks(await pull(store, member, topic, owner=name))))
    assert [(group, client) for _, group, client, _, _ in await told(store, topic, 0)] == [
        ("all", "ann"),
        ("all", "ann"),
        ("all", "bob"),
        ("all", "bob"),
    ]


async def test_old_records_go(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    for _ in range(3):
        ok(await store.send([sending(topic)]))
        ok(await store.settle(acks(await pull(store, group, topic))))
        world.clock.pass_time(HOUR)
    assert await store.trim_events(HOUR + 1) == 4
    assert await store.trim_events(HOUR + 1) == 0
    assert [len(await told(store, topic, offset)) for offset in range(3)] == [0, 0, 2]


async def test_it_can_be_switched_off(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    quiet = world.broker("quiet", keep_history=False)
    ok(await store.send([sending(topic)]))
    ok(await quiet.settle(acks(await pull(quiet, group, topic))))
    assert world.count("delivery_event") == 0
