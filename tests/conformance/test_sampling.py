"""Samples of what a database holds, for metrics."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.check_policy import SECOND
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.metrics.gauges import Bounded
from broker.metrics.sampled import sampled
from broker.ports.connections import ALIVE, MOST_NAMES, BrokerStatus, ClientKind, ConnectedClient
from broker.ports.delivery import ClaimWork, JoinWork
from broker.ports.sampling import Lag, PendingOfGroup
from broker.storage.sampling import lags
from conformance.world import (
    HOUR,
    LEASE,
    POLICY,
    START,
    World,
    commit,
    decided,
    nacks,
    new_id,
    ok,
    prepared,
    sending,
)

if TYPE_CHECKING:
    import pytest

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Delivered
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session


async def claim(store: Store, group: ConsumerGroup, topic: Topic, limit: int) -> list[Delivered]:
    (claimed,) = await store.claim([ClaimWork(group, [topic], "me", limit, 1 << 20, LEASE)])
    return claimed.parts  # type: ignore[union-attr]


async def test_what_is_pending_is_counted_by_producer_group(world: World, store: Store, topic: Topic) -> None:
    assert (await store.sample()).pending == []
    first = await prepared(store, topic, bodies=["a", "b"])
    world.clock.pass_time(SECOND)
    await prepared(store, topic)
    (own,) = (await store.sample()).pending
    assert own == PendingOfGroup("shop", pending=2, since=START, has_producer=False)
    ok(await store.decide([commit(first)]))
    (own,) = (await store.sample()).pending
    assert (own.pending, own.since) == (1, START + SECOND)


def producer(number: int, *groups: str) -> ConnectedClient:
    return ConnectedClient(ClientKind.PRODUCER, f"shop-{number}", "", "", "", groups, (), number)


async def test_a_group_has_a_producer_where_any_living_broker_reports_one(
    world: World, store: Store, topic: Topic
) -> None:
    await prepared(store, topic)
    status = BrokerStatus("one", "host", 1, "", "", 5, producers=1, consumers=1)
    consumer = replace(producer(7, "shop"), kind=ClientKind.CONSUMER)

    async def has_producer() -> bool | None:
        (own,) = (await store.sample()).pending
        return own.has_producer

    await store.report_broker(status, [producer(1, "store"), consumer])
    assert await has_producer() is False
    await store.report_broker(replace(status, broker_id="two"), [producer(2, "store", "shop"), consumer])
    assert await has_producer() is True
    world.clock.pass_time(ALIVE + SECOND)
    assert await has_producer() is False, "what a broker said that is gone counts no longer"


async def test_whether_a_group_has_a_producer_is_not_known_where_not_all_are_reported(
    world: World, store: Store, topic: Topic
) -> None:
    await prepared(store, topic)
    status = BrokerStatus("one", "host", 1, "", "", 5, producers=2)
    for clients in ([producer(1, "store")], [producer(1, *map(str, range(MOST_NAMES))), producer(2, "store")]):
        await store.report_broker(status, clients)
        state = await store.sample()
        assert state.pending[0].has_producer is None
        told = {each.name for each in sampled(state, world.clock.now(), HOUR, Bounded(10, "other")) if each.samples}
        assert "halfmq_half_messages_without_producer" not in told
        assert "rocketmq_half_messages" in told


async def test_a_check_that_nobody_gets_is_overdue_and_the_end_is_parked(
    world: World, store: Store, topic: Topic
) -> None:
    await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check + SECOND)
    (own,) = (await store.sample()).pending
    assert own.due_since == START + POLICY.first_check
    group = await store.producer_group_id("shop")
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        assert len(await store.claim_checks([group], POLICY, 10)) == 1
        assert (await store.sample()).pending[0].due_since is None
    world.clock.pass_time(POLICY.interval)
    await store.park_exhausted(10)
    assert (await store.sample()).pending == [PendingOfGroup("shop", parked=1, has_producer=False)]


async def test_a_lag_is_split_by_what_became_of_the_messages(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    assert (await store.sample()).lags == []
    ok(await store.send([sending(topic, str(number)) for number in range(3)]))
    world.clock.pass_time(SECOND)
    ok(await store.send([sending(topic, str(number)) for number in range(3, 10)]))
    assert (await store.sample()).lags == [Lag("orders", "billing", ready=10, since=START, ready_since=START)]
    taken = await claim(store, group, topic, 4)
    (lag,) = (await store.sample()).lags
    assert lag == Lag("orders", "billing", ready=6, in_flight=4, since=START, ready_since=START + SECOND)
    ok(await store.settle(nacks(taken, delay=HOUR)[:1]))
    (lag,) = (await store.sample()).lags
    assert (lag.ready, lag.retrying, lag.in_flight, lag.messages) == (6, 1, 3, 10)
    world.clock.pass_time(LEASE)
    (lag,) = (await store.sample()).lags
    assert (lag.ready, lag.retrying, lag.in_flight) == (6, 4, 0)


async def test_pages_add_up_and_so_do_members(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lags, "PAGE", 2)
    monkeypatch.setattr(lags, "LEASES", 2)
    wide = await store.create_topic("wide", TopicSettings(5, HOUR))
    for number in range(3):
        made = await store.create_group(f"g{number}", GroupSettings(3), TopicSettings(1, HOUR))
        await store.join(JoinWork(made, [topic, wide], "c", {}))
    ok(await store.send([sending(wide, str(number), queue_no=number % 5) for number in range(10)]))
    ok(await store.send([sending(topic)]))
    found = {(lag.topic, lag.consumer_group): lag.ready for lag in (await store.sample()).lags}
    assert found == {
        (name, f"g{number}"): ready for number in range(3) for name, ready in (("wide", 10), ("orders", 1))
    }


async def test_dead_letters_are_counted_from_the_first_on(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    (own,) = (await store.sample()).dead_letters
    assert (own.consumer_group, own.written, own.kept) == ("billing", 0, 0)
    ok(await store.send([sending(topic)]))
    ok(await store.settle(nacks(await claim(store, group, topic, 1), given_up=True)))
    (own,) = (await store.sample()).dead_letters
    assert (own.written, own.kept) == (1, 1)


async def test_totals_are_those_of_the_tables(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, deliver_at=START + HOUR)]))
    transaction_id = await prepared(store, topic)
    await decided(store, commit(transaction_id))
    totals = (await store.sample()).totals
    assert (totals.topics, totals.consumer_groups) == (2, 1)
    assert (totals.scheduled, totals.scheduled_due) == (1, START + HOUR)
    assert totals.oldest_op == START
    assert (totals.submissions, totals.refused_submissions, totals.sink_transactions) == (0, 0, 0)


async def test_at_ten_thousand_topics_and_a_hundred_thousand_pending_a_sample_is_quick_and_bounded(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    topics, pending = 10_000, 100_000
    # Behind those of the tests before.
    base = max(topic.topic_id, *topic.queue_ids) + 1000
    producer_group = await store.producer_group_id("shop")

    def fill(session: Session) -> None:
        first = group.group_id
        session.insert(
            "topic",
            "topic_id, name, queue_count, retention, created_at",
            [(base + n, f"t{n}", 1, HOUR, START) for n in range(topics)],
        )
        session.insert(
            "queue",
            "queue_id, topic_id, queue_no, next_offset, min_offset",
            [(base + n, base + n, 0, n + 1, 0) for n in range(topics)],
        )
        session.insert(
            "group_progress", "group_id, queue_id, next_offset", [(first, base + n, 0) for n in range(topics)]
        )
        columns = "transaction_id, position, producer_group_id, topic_id, body, size, born_at, check_state"
        columns += ", check_due_at, check_count"
        for start in range(0, pending, 10_000):
            session.insert(
                "half_message",
                columns,
                [
                    (new_id(), 0, producer_group, base, b"x", 1, START + n, 1, START + n, 0)
                    for n in range(start, start + 10_000)
                ],
            )

    await store._write(fill)
    began = time.monotonic()
    state = await store.sample()
    took = time.monotonic() - began
    assert took < 10.0, "milliseconds on an idle machine; here only that it is no matter of minutes"
    assert (state.pending[0].pending, state.pending[0].since) == (pending, START)
    assert len(state.lags) == topics
    families = list(sampled(state, world.clock.now(), HOUR, Bounded(1000, "other")))
    series = [each for family in families for each in family.samples]
    assert len([each for each in series if each.name == "rocketmq_consumer_lag_messages"]) == 1001
    assert len(series) < 5 * 1001 + 50
    lag = sum(each.value for each in series if each.name == "rocketmq_consumer_lag_messages")
    assert lag == topics * (topics + 1) // 2, "those under another name are counted, too"
