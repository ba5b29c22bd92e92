"""Tenants: nothing is seen across them, and each uses what its quota allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import Refusal, message
from acceptance.guarded import DENIED, JUDGED, METHODS, NOT_FOUND, methods_of, refusal, sample
from halfmq.v1 import (
    access_pb2,
    admin_pb2,
    producer_pb2,
)

if TYPE_CHECKING:
    from acceptance.guarded import World


async def test_nothing_is_seen_across_tenants(world: World) -> None:
    await world.grant("user:*", "all", "*", "*")
    acme, globex = world.clients["acme"], world.clients["globex"]
    for client, tenant in ((acme, "acme"), (globex, "globex")):
        await client.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=f"{tenant}%orders")))
        group = admin_pb2.ConsumerGroup(name=f"{tenant}%shop")
        await client.admin.CreateGroup(admin_pb2.CreateGroupRequest(group=group))
        await client.send(f"{tenant}%orders", f"of {tenant}")
    plain = await world.root.make_topic("plain")
    (one,) = await globex.prepare("globex%shop", "globex%orders", ["half"])
    seen = [each.name for each in (await acme.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics]
    assert sorted(seen) == ["%DLQ%acme%shop", "acme%orders"]
    assert [each.name for each in (await acme.admin.ListGroups(admin_pb2.ListGroupsRequest())).groups] == ["acme%shop"]
    assert not (await acme.admin.ListTransactions(admin_pb2.ListTransactionsRequest())).transactions
    assert await acme.bodies("acme%orders") == ["of acme"]
    answers = set()
    for topic in ("globex%orders", plain, "nowhere"):
        for path in METHODS.keys() - JUDGED:
            answers.add(await refusal(methods_of(acme.channel, path)(sample(path, topic, f"{topic}-group"))))
    assert answers == {(grpc.StatusCode.PERMISSION_DENIED, "No rule allows this to you.")}
    (sent,) = (await acme.producer.Send(producer_pb2.SendRequest(messages=[message("globex%orders")]))).results
    assert sent.error.code == DENIED
    (committed,) = await acme.commit([one])
    assert committed.error.code == NOT_FOUND
    with pytest.raises(Refusal) as hidden:
        await acme.transaction(one)
    assert hidden.value.code is grpc.StatusCode.NOT_FOUND
    # Who has no tenant sees all, as far as rules allow it.
    everything = {each.name for each in (await world.root.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics}
    assert {"acme%orders", "globex%orders", plain} <= everything


async def test_a_tenant_uses_what_its_quota_allows(world: World) -> None:
    await world.grant("user:*", "all", "*", "*")
    acme, globex = world.clients["acme"], world.clients["globex"]
    quota = access_pb2.Quota(tenant="acme", topics=1, groups=2, pending_transactions=3, streams=1)
    changed = await world.root.admin.SetQuota(access_pb2.SetQuotaRequest(quota=quota))
    assert (changed.quota.topics, changed.quota.set_by) == (1, "root")
    listed = (await world.root.admin.ListQuotas(access_pb2.ListQuotasRequest())).quotas
    assert [(each.tenant, each.pending_transactions) for each in listed] == [("acme", 3)]

    async def over(call: Any) -> None:
        with pytest.raises(Refusal) as refused:
            await call
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.value.reason == "QUOTA_EXCEEDED"

    async def tried(call: Any) -> str:
        try:
            await call
        except Refusal as refused:
            return refused.reason
        return ""

    def topic(name: str) -> admin_pb2.CreateTopicRequest:
        return admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name))

    await acme.admin.CreateTopic(topic("acme%orders"))
    assert (await refusal(acme.admin.CreateTopic(topic("acme%more"))))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    for name in ("globex%orders", "globex%more"):
        await globex.admin.CreateTopic(topic(name))
    await acme.prepare("acme%one", "acme%orders", ["a", "b", "c"])
    group = admin_pb2.ConsumerGroup(name="acme%shop")
    await acme.admin.CreateGroup(admin_pb2.CreateGroupRequest(group=group))
    await over(acme.prepare("acme%two", "acme%orders", ["a"]))
    # They are counted every second, or when the machine gets around to it.
    async with asyncio.timeout(60):
        while not await tried(acme.prepare("acme%one", "acme%orders", ["d"])):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.5)
    await over(acme.prepare("acme%one", "acme%orders", ["d"]))
    await globex.prepare("globex%one", "globex%orders", ["a", "b", "c", "d"])
    stream = await acme.answering("acme%one")
    await over(acme.answering("acme%one"))
    del stream
    # A rate: what was sent is waited for.
    quota = access_pb2.Quota(tenant="acme", messages_per_second=10)
    await world.root.admin.SetQuota(access_pb2.SetQuotaRequest(quota=quota))
    many = producer_pb2.SendRequest(messages=[message("acme%orders") for _ in range(100)])
    await acme.producer.Send(many)
    assert (await refusal(acme.producer.Send(many)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    # Without a limit it is removed.
    await world.root.admin.SetQuota(access_pb2.SetQuotaRequest(quota=access_pb2.Quota(tenant="acme")))
    assert not (await world.root.admin.ListQuotas(access_pb2.ListQuotasRequest())).quotas
    await acme.producer.Send(many)
