"""The record of who did what from where, refusals included."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc

from acceptance.client import message, new_id
from acceptance.guarded import halfmq, methods_of, refusal
from halfmq.v1 import (
    access_pb2,
    admin_pb2,
    producer_pb2,
)

if TYPE_CHECKING:
    from acceptance.guarded import World


async def records(world: World, **wanted: Any) -> list[access_pb2.AuditRecord]:
    request = access_pb2.ListAuditRecordsRequest(oldest_first=True, **wanted)
    return list((await world.root.admin.ListAuditRecords(request)).records)


def said(record: access_pb2.AuditRecord) -> tuple[str, str, str, str, str]:
    outcome = access_pb2.AuditOutcome.Name(record.outcome).removeprefix("AUDIT_OUTCOME_")
    return record.principal, record.call, record.action, record.resource, outcome


async def test_changes_and_refusals_are_recorded(world: World) -> None:
    topic = await world.root.make_topic("recorded")
    again = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic))
    assert (await refusal(world.root.admin.CreateTopic(again)))[0] is grpc.StatusCode.ALREADY_EXISTS
    await world.grant("user:bob", "operate", "group", "bobs")
    delete = admin_pb2.DeleteTopicRequest(topic=topic)
    for _ in range(3):
        await refusal(world.bob.admin.DeleteTopic(delete))
    await world.bob.producer.Send(producer_pb2.SendRequest(messages=[message(topic)]))
    async with grpc.aio.insecure_channel(world.endpoint) as stranger:
        await refusal(methods_of(stranger, "/halfmq.v1.AdminService/DeleteTopic")(delete))
    await world.root.admin.DeleteTopic(delete)
    # Refusals and failures are written a moment later.
    awaited = {("root", "AdminService/CreateTopic", "FAILED"), ("", "AdminService/DeleteTopic", "UNAUTHENTICATED")}
    awaited |= {("bob", call, "DENIED") for call in ("AdminService/DeleteTopic", "ProducerService/Send")}
    found = await records(world)
    async with asyncio.timeout(60):
        while not awaited <= {(*said(record)[:2], said(record)[-1]) for record in found}:
            await asyncio.sleep(0.1)
            found = await records(world)
    assert {record.address for record in found if record.broker != "halfmq access"} <= {"127.0.0.1", "::1"}
    assert {record.broker for record in found} != {""}
    own = [said(record) for record in found if topic in record.resource or record.resource == "access user:bob"]
    assert own[:2] == [("root", "AdminService/CreateTopic", "CREATE", f"topic {topic}", "ALLOWED")] * 2
    assert ("root", "AdminService/CreateTopic", "CREATE", f"topic {topic}", "FAILED") in own
    assert ("root", "AdminService/GrantAccess", "UPDATE", "access user:bob", "ALLOWED") in own
    assert ("bob", "ProducerService/Send", "PUB", f"topic {topic}", "DENIED") in own
    assert ("root", "AdminService/DeleteTopic", "DELETE", f"topic {topic}", "ALLOWED") in own
    denied = await records(world, principal="bob", call="AdminService/DeleteTopic")
    assert said(denied[0]) == ("bob", "AdminService/DeleteTopic", "DELETE", f"topic {topic}", "DENIED")
    assert sum(record.times for record in denied) <= 3
    (failed,) = await records(world, resource=f"topic {topic}", outcome=access_pb2.AUDIT_OUTCOME_FAILED)
    assert failed.detail == "TOPIC_EXISTS"
    strangers = await records(world, outcome=access_pb2.AUDIT_OUTCOME_UNAUTHENTICATED)
    assert said(strangers[0])[:4] == ("", "AdminService/DeleteTopic", "", "")
    shown = await asyncio.to_thread(halfmq, "access", "audit", "--principal=bob", "--json", f"--database={world.url}")
    assert {json.loads(line)["principal"] for line in shown.splitlines()} == {"bob"}
    assert len(shown.splitlines()) >= 2


async def test_pages_of_records(world: World) -> None:
    for _ in range(5):
        await world.root.make_topic()
    pages, token = [], ""
    while True:
        request = access_pb2.ListAuditRecordsRequest(call="AdminService/CreateTopic", page_size=2, page_token=token)
        page = await world.root.admin.ListAuditRecords(request)
        pages.append([record.audit_id for record in page.records])
        if not (token := page.next_page_token):
            break
    assert [len(page) for page in pages] == [2, 2, 1]
    numbers = [number for page in pages for number in page]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) == 5


async def test_what_is_recorded_of_rules_shows_all_of_them(world: World) -> None:
    number = await world.grant("user:bob", ",".join(["get"] * 1000 + ["operate"]), "group", "bobs-*")
    await world.root.admin.RevokeAccess(access_pb2.RevokeAccessRequest(rule_ids=[number, *range(10**6, 10**6 + 19)]))
    granted = (await records(world, call="AdminService/GrantAccess"))[-1]
    assert granted.detail == "allow user:bob OPERATE,GET,LIST group bobs-*"
    (revoked,) = await records(world, call="AdminService/RevokeAccess")
    assert revoked.detail == f"{number}: {granted.detail}"
    many = access_pb2.RevokeAccessRequest(rule_ids=range(21))
    assert (await refusal(world.root.admin.RevokeAccess(many)))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_whoever_may_not_decide_fills_no_records(world: World) -> None:
    topic = await world.root.make_topic()
    (one,) = await world.root.prepare("shop", topic, ["order"])
    for transaction_id in (one, new_id()):
        resolving = admin_pb2.ResolveTransactionRequest(
            transaction_id=transaction_id, resolution=admin_pb2.RESOLUTION_COMMIT, reason="x" * 400
        )
        for _ in range(3):
            assert (await refusal(world.bob.admin.ResolveTransaction(resolving)))[0] is grpc.StatusCode.NOT_FOUND
    assert not await records(world, call="AdminService/ResolveTransaction")
    resolving.transaction_id = one
    await world.root.admin.ResolveTransaction(resolving)
    (record,) = await records(world, call="AdminService/ResolveTransaction")
    assert said(record) == ("root", "AdminService/ResolveTransaction", "OPERATE", f"transaction {one}", "ALLOWED")
