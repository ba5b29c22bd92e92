"""What operators may see and decide at once: only of groups that they may operate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PATIENCE, Refusal, unique
from acceptance.streams import make_group
from halfmq.v1 import access_pb2, admin_pb2, consumer_pb2

if TYPE_CHECKING:
    from acceptance.client import Client
    from acceptance.guarded import World

DENIED = grpc.StatusCode.PERMISSION_DENIED
ROLL_BACK = admin_pb2.RESOLUTION_ROLLBACK


async def steps(client: Client, **wanted: Any) -> list[admin_pb2.ResolveTransactionsResponse]:
    request = admin_pb2.ResolveTransactionsRequest(resolution=ROLL_BACK, **wanted)
    return await client.stream(client.admin.ResolveTransactions, request)


async def test_many_transactions_are_resolved_of_groups_that_somebody_operates(world: World) -> None:
    topic, mine, theirs = await world.root.make_topic(), unique("mine"), unique("theirs")
    own = await world.root.prepare(mine, topic, ["a", "b"], check_after=3600)
    foreign = await world.root.prepare(theirs, topic, ["c"], check_after=3600)
    await world.grant("user:alice", "operate", "group", mine)
    await world.grant("user:alice", "operate", "topic", topic)
    counted = await steps(world.alice, topic=topic, dry_run=True)
    assert [step.matched for step in counted] == [2]
    resolved = await steps(world.alice, topic=topic, reason="gone", operator="root")
    assert (resolved[-1].matched, resolved[-1].resolved) == (2, 2)
    assert set(await world.root.undecided(theirs)) == set(foreign)
    # Who is known does not choose a name.
    assert (await world.root.transaction(own[0])).operator_actions[0].operator == "alice"
    for wanted in ({"producer_group": theirs}, {"producer_group": theirs, "dry_run": True}):
        with pytest.raises(Refusal) as refused:
            await steps(world.alice, reason="gone", **wanted)
        assert refused.value.code is DENIED
    listed = await world.alice.call(world.alice.admin.ListTransactions, admin_pb2.ListTransactionsRequest(decided=True))
    assert {each.transaction_id for each in listed.transactions} == set(own)


async def test_what_was_resolved_at_once_is_recorded_and_a_dry_run_is_not(world: World) -> None:
    topic, group = await world.root.make_topic(), unique("shop")
    await world.root.prepare(group, topic, ["a"], check_after=3600)
    await steps(world.root, producer_group=group, dry_run=True)
    await steps(world.root, producer_group=group, reason="gone")
    request = access_pb2.ListAuditRecordsRequest(call="AdminService/ResolveTransactions")
    records = (await world.root.call(world.root.admin.ListAuditRecords, request)).records
    assert [(each.principal, each.action, each.resource) for each in records] == [
        ("root", "OPERATE", f"transactions of {group}")
    ]
    assert "gone" in records[0].detail


async def test_dead_letters_are_purged_by_those_who_operate_their_group(world: World) -> None:
    mine, theirs = await world.root.make_group("mine"), await world.root.make_group("theirs")
    await world.grant("user:alice", "operate", "group", mine)
    purge = world.alice.admin.PurgeDeadLetters
    (done,) = await world.alice.stream(purge, admin_pb2.PurgeDeadLettersRequest(group=mine))
    assert (done.deleted, done.done) == (0, True)
    with pytest.raises(Refusal) as refused:
        await world.alice.stream(purge, admin_pb2.PurgeDeadLettersRequest(group=theirs, dry_run=True))
    assert refused.value.code is DENIED
    request = access_pb2.ListAuditRecordsRequest(call="AdminService/PurgeDeadLetters", principal="alice")
    async with asyncio.timeout(PATIENCE):
        # Refusals are recorded a moment later.
        while len(records := (await world.root.call(world.root.admin.ListAuditRecords, request)).records) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert {(each.resource, access_pb2.AuditOutcome.Name(each.outcome)) for each in records} == {
        (f"group {mine}", "AUDIT_OUTCOME_ALLOWED"),
        (f"group {theirs}", "AUDIT_OUTCOME_DENIED"),
    }


async def test_the_overview_names_groups_that_may_be_seen_and_counts_all_dead_letters(world: World) -> None:
    topic, root = await world.root.make_topic(), world.root
    mine, theirs = [await make_group(root, unique(name), max_attempts=1) for name in ("mine", "theirs")]
    for group in (mine, theirs):
        await root.send(topic)
        deliveries = await root.pull(group, topic, wait=PATIENCE)
        request = consumer_pb2.NackRequest(receipt_handles=[each.receipt_handle for each in deliveries], reason="x")
        await root.call(root.consumer.Nack, request)
    ask = admin_pb2.GetOverviewRequest()
    with pytest.raises(Refusal) as unseen:
        await world.alice.call(world.alice.admin.GetOverview, ask)
    assert unseen.value.code is DENIED
    await world.grant("user:alice", "operate", "cluster", "overview")
    await world.grant("user:alice", "operate", "group", mine)
    async with asyncio.timeout(PATIENCE):
        # It is counted once a second at most.
        while not {mine, theirs} <= groups_with_letters(whole := await overview(root)):
            pass
    seen = await overview(world.alice)
    assert [each.group for each in seen.dead_letters_by_group] == [mine]
    assert seen.dead_letter_groups == 1
    assert seen.dead_letters == whole.dead_letters == sum(each.kept for each in whole.dead_letters_by_group)


async def overview(client: Client) -> admin_pb2.GetOverviewResponse:
    found: admin_pb2.GetOverviewResponse = await client.call(client.admin.GetOverview, admin_pb2.GetOverviewRequest())
    return found


def groups_with_letters(found: admin_pb2.GetOverviewResponse) -> set[str]:
    return {each.group for each in found.dead_letters_by_group}


async def test_clients_and_lags_are_told_of_groups_that_may_be_seen(world: World) -> None:
    mine, theirs = unique("mine"), unique("theirs")
    await world.grant("user:alice", "operate", "group", mine)
    await world.root.answering(mine, "a")
    await world.root.answering(theirs, "b")
    async with asyncio.timeout(PATIENCE):
        while True:
            request = admin_pb2.ListClientsRequest()
            found = (await world.root.call(world.root.admin.ListClients, request)).clients
            if {each.client_id for each in found} >= {"a", "b"}:
                break
            await asyncio.sleep(0.1)
    assert {each.principal for each in found} == {"root"}
    seen = (await world.alice.call(world.alice.admin.ListClients, admin_pb2.ListClientsRequest())).clients
    assert [(each.client_id, list(each.groups)) for each in seen] == [("a", [mine])]
    with pytest.raises(Refusal) as refused:
        await world.alice.call(world.alice.admin.ListClients, admin_pb2.ListClientsRequest(group=theirs))
    assert refused.value.code is DENIED
    readers = [await world.root.make_group("mine"), await world.root.make_group("theirs")]
    await world.grant("user:alice", "operate", "group", readers[0])
    lags = (await world.alice.call(world.alice.admin.ListGroupLag, admin_pb2.ListGroupLagRequest())).groups
    assert [each.group for each in lags] == readers[:1]
    with pytest.raises(Refusal) as unseen:
        await world.alice.call(world.alice.admin.ListBrokers, admin_pb2.ListBrokersRequest())
    assert unseen.value.code is DENIED
    await world.grant("user:alice", "operate", "cluster", "brokers")
    assert len((await world.alice.call(world.alice.admin.ListBrokers, admin_pb2.ListBrokersRequest())).brokers) == 1
