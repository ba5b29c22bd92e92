"""What tenants may use and do use, in the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupMode, GroupSettings
from broker.domain.tenancy import EACH_TENANT, Quota, Usage
from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, Overloaded
from broker.ports.delivery import JoinWork
from broker.ports.epochs import SINK_GROUP, Epoch, EpochWrites, SinkWork
from broker.ports.transactions import PrepareWork
from broker.storage.catalog import quotas
from conformance.world import HOUR, START, half, new_id, ok, sending

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from broker.storage.adapters.store import Store
    from conformance.world import World

SETTINGS = TopicSettings(queue_count=2, retention=HOUR)


async def test_quotas_are_set_changed_and_removed(world: World, store: Store) -> None:
    other = world.broker("b")
    assert await store.quotas() == []
    acme, common = Quota("acme", 1, 2, 3, 4, 5, 6, 7), Quota("*", messages_per_second=1 << 62)
    for quota in (acme, common):
        assert (await store.set_quota(quota, "root")).quota == quota
    assert [(each.quota, each.set_by) for each in await other.quotas()] == [(common, "root"), (acme, "root")]
    changed = Quota("acme", topics=1)
    await other.set_quota(changed, "bob")
    assert [(each.quota, each.set_by) for each in await store.quotas()] == [(common, "root"), (changed, "bob")]
    await store.set_quota(Quota("acme"), "root")
    assert [each.quota for each in await store.quotas()] == [common]


async def test_what_a_tenant_uses(store: Store) -> None:
    whole = Quota("acme", retained_bytes=1, pending_transactions=1)
    assert await store.usage(whole, "acme") == Usage()
    names = ("acme%orders", "acme%payments", "acme", "acme2%orders", "globex%orders")
    topics = {name: await store.create_topic(name, SETTINGS) for name in names}
    producers = {name: await store.producer_group_id(name) for name in ("acme%shop", "acme", "globex%shop")}
    ok(await store.send([sending(topics["acme%orders"], "x" * 100), sending(topics["globex%orders"], "x" * 1000)]))
    assert await store.usage(whole, "acme") == Usage(100, 0)
    work = [
        PrepareWork(new_id(), producers[f"{tenant}%shop"], [half(topics[f"{tenant}%orders"], "y" * 10)] * halves)
        for tenant, halves in (("acme", 2), ("acme", 1), ("globex", 1))
    ]
    ok(await store.prepare(work))
    assert await store.usage(whole, "acme") == Usage(130, 2)
    later = [sending(topics[f"{name}%orders"], "z" * 7, deliver_at=START + HOUR) for name in ("acme", "globex")]
    ok(await store.send(later))
    assert await store.usage(whole, "acme") == Usage(137, 2)
    # Bytes that are not limited are not measured.
    assert await store.usage(Quota("acme", pending_transactions=1), "acme") == Usage(0, 2)
    assert await store.usage(whole, "globex") == Usage(1017, 1)


async def test_what_sinks_of_a_tenant_use(store: Store) -> None:
    whole = Quota("acme", retained_bytes=1, pending_transactions=1)
    topic = await store.create_topic("acme%orders", SETTINGS)
    group = await store.producer_group_id(SINK_GROUP)
    for sink in ("acme%archive", "globex%archive"):
        for number in range(2):
            halves = PrepareWork(new_id(), group, [half(topic, "x" * 50)] * 2, checked=False)
            assert await store.prepare_epoch(SinkWork(Epoch(sink, "query", number, False), new_id(), halves)) is False
    assert await store.usage(whole, "acme") == Usage(200, 2)
    await store.commit_epoch(Epoch("acme%copy", "query", 0, False), {}, EpochWrites(position=b"x" * 1000))
    assert await store.usage(whole, "acme") == Usage(1200, 2)


async def test_many_half_messages_count_by_the_size_of_some(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MOST_SIZES", 4)
    topic = await store.create_topic("acme%orders", SETTINGS)
    group = await store.producer_group_id("acme%shop")
    ok(await store.prepare([PrepareWork(new_id(), group, [half(topic, "y" * 10)]) for _ in range(10)]))
    assert await store.usage(Quota("acme", retained_bytes=1), "acme") == Usage(100, 10)


async def test_no_more_are_made_than_a_quota_allows_however_many_ask(world: World, store: Store) -> None:
    other = world.broker("b")
    for quota in (Quota("acme", topics=3, groups=4), Quota(EACH_TENANT, topics=1, groups=2)):
        await store.set_quota(quota, "root")

    async def made(*attempts: Awaitable[object]) -> int:
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                assert isinstance(outcome, Overloaded), outcome
                assert outcome.reason == "QUOTA_EXCEEDED"
        return sum(not isinstance(outcome, Exception) for outcome in outcomes)

    both = (store, other)
    for tenant, topics, groups in (("acme", 3, 4), ("globex", 1, 2)):
        names = [f"{tenant}%n{number}" for number in range(6)]
        assert (
            await made(*(each.create_topic(f"{name}-{at}", SETTINGS) for name in names for at, each in enumerate(both)))
            == topics
        )
        # Groups of consumers and of producers are counted together.
        groups_of = [
            each.create_group(f"{name}-{at}", GroupSettings(), SETTINGS)
            for name in names[:3]
            for at, each in enumerate(both)
        ]
        producers = [each.producer_group_id(f"{name}-{at}") for name in names for at, each in enumerate(both)]
        assert await made(*groups_of, *producers) == groups
    listed = {each.name for each in await store.list_topics("", 100)}
    assert sum(name.startswith("acme%") for name in listed) == 3
    assert world.count("consumer_group") + world.count("producer_group") == 6
    # Dead letter topics do not count, nor do names without a tenant.
    await store.create_topic("orders", SETTINGS)
    await store.create_topic("acme", SETTINGS)


async def test_what_is_there_needs_no_room(store: Store) -> None:
    await store.set_quota(Quota("acme", topics=1, groups=2), "root")
    topic = await store.create_topic("acme%orders", SETTINGS)
    await store.create_group("acme%shop", GroupSettings(), SETTINGS)
    number = await store.producer_group_id("acme%shop")
    assert await store.producer_group_id("acme%shop") == number
    with pytest.raises(AlreadyExists):
        await store.create_topic("acme%orders", SETTINGS)
    with pytest.raises(AlreadyExists):
        await store.create_group("acme%shop", GroupSettings(), SETTINGS)
    await store.delete_topic(topic)
    await store.create_topic("acme%more", SETTINGS)


async def test_members_of_broadcasting_groups_count(store: Store) -> None:
    topic = await store.create_topic("acme%orders", SETTINGS)
    group = await store.create_group("acme%all", GroupSettings(mode=GroupMode.BROADCASTING), SETTINGS)
    await store.set_quota(Quota("acme", groups=3), "root")
    for client in ("one", "two", "one"):
        await store.join(JoinWork(group, [topic], client, {}))
    with pytest.raises(Overloaded, match="groups"):
        await store.join(JoinWork(group, [topic], "three", {}))
    await store.join(JoinWork(group, [topic], "two", {}))
