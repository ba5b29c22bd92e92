"""Access: nobody gets in who is not known, nobody does what no rule allows, and refusals tell nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message_factory import GetMessageClass
from jwt.algorithms import ECAlgorithm

from acceptance.client import COMMIT, COMMITTED, PREPARED, Client, Refusal, half, message, new_id, unique
from broker.api.access import CALLS
from broker.domain.access import Principal
from broker.wire.credentials.tokens import hash_of, new_token, read_tokens, with_token
from halfmq.v1 import (
    access_pb2,
    admin_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
    sink_pb2,
    transaction_pb2,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

NOT_FOUND, DENIED = grpc.StatusCode.NOT_FOUND.value[0], grpc.StatusCode.PERMISSION_DENIED.value[0]
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (transaction_pb2, producer_pb2, consumer_pb2, admin_pb2, query_pb2, sink_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
NAMES = ("root", "alice", "bob")
TENANTS = ("acme", "globex")
SIGNER = ec.generate_private_key(ec.SECP256R1())


def halfmq(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class World:
    """A broker with access on, and clients: root may do everything, alice and bob what tests grant them."""

    url: str
    tokens: dict[str, str]
    clients: dict[str, Client]
    endpoint: str
    file: Path

    def __getattr__(self, name: str) -> Client:
        return self.clients[name]

    async def grant(self, subject: str, rights: str, kind: str, pattern: str, *, deny: bool = False) -> int:
        """Grants; returns the number of the rule. The broker that does it knows it at once."""
        rule = access_pb2.AccessRule(subject=subject, actions=rights.split(","), kind=kind, pattern=pattern, deny=deny)
        granted = await self.root.admin.GrantAccess(access_pb2.GrantAccessRequest(rule=rule))
        return int(granted.rule.rule_id)


async def is_let_in(client: Client) -> bool:
    try:
        await client.admin.ListQuotas(access_pb2.ListQuotasRequest())
    except grpc.aio.AioRpcError:
        return False
    return True


async def is_known(client: Client) -> bool:
    try:
        await client.admin.ListTopics(admin_pb2.ListTopicsRequest())
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.UNAUTHENTICATED
    return True


@pytest.fixture
async def world(kind: AnyKind, new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "tokens.toml"
    tokens = dict.fromkeys((*NAMES, *TENANTS), "")
    content = b""
    for name in tokens:
        tokens[name] = new_token()
        tenant = name if name in TENANTS else ""
        content = with_token(content, name, hash_of(tokens[name]), roles=(), tenant=tenant, replace=False)
    file.write_bytes(content)
    keys = tmp_path / "jwks.json"
    public = {**ECAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True), "kid": "one", "alg": "ES256"}
    keys.write_text(json.dumps({"keys": [public]}))
    broker = new_broker(
        kind,
        access=True,
        access_tokens=file,
        access_without_tls=True,
        jwt_keys=keys,
        jwt_audience="halfmq",
        jwt_issuer="https://id.example",
        jwt_clock_skew=1,
        first_check=0.3,
    )
    halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={broker.database}")
    clients = {name: Client(broker.endpoint, token) for name, token in tokens.items()}
    async with asyncio.timeout(30):
        while not await is_let_in(clients["root"]):  # noqa: ASYNC110 - within a second
            await asyncio.sleep(0.1)
    yield World(broker.database, tokens, clients, broker.endpoint, file)
    for client in clients.values():
        await client.close()
    for token in tokens.values():
        assert token not in broker.log


def methods_of(channel: Any, path: str) -> Any:
    """A method by its path, as a function of a request; a stream answers with its first response."""
    method = METHODS[path]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    forms = {"request_serializer": request.SerializeToString, "response_deserializer": response.FromString}

    async def call(content: Any, metadata: Any = ()) -> Any:
        if method.client_streaming:
            stream = channel.stream_stream(path, **forms)(metadata=metadata)
            await stream.write(content)
            answer = await stream.read()
            if answer is grpc.aio.EOF:
                raise grpc.aio.AioRpcError(
                    await stream.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await stream.details()
                )
            stream.cancel()
            return answer
        if method.server_streaming:
            return [each async for each in channel.unary_stream(path, **forms)(content, metadata=metadata)]
        return await channel.unary_unary(path, **forms)(content, metadata=metadata)

    return call


async def refusal(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details()


def jwt_of(key: Any = None, **claims: Any) -> str:
    content = {"sub": "root", "aud": "halfmq", "iss": "https://id.example", "exp": time.time() + 60, **claims}
    return jwt.encode(content, key or SIGNER, "ES256", headers={"kid": "one"})


async def withdrawn_token(world: World) -> str:
    """A token that was good, until its hash was removed from the file."""
    before, token = world.file.read_bytes(), new_token()
    world.file.write_bytes(with_token(before, "root", hash_of(token), roles=(), tenant="", replace=False))
    client = Client(world.endpoint, token)
    assert await is_let_in(client)
    world.file.write_bytes(before)
    async with asyncio.timeout(30):
        while await is_let_in(client):  # noqa: ASYNC110 - within a second
            await asyncio.sleep(0.1)
    await client.close()
    return token


async def wrong_jwts(world: World) -> list[str]:
    """Expired, too early, for another audience, of another issuer, signed by another key; a good one is let in."""
    now = time.time()
    good = (("authorization", f"Bearer {jwt_of()}"),)
    await world.grant("user:jwt:root", "all", "topic", "*")
    async with grpc.aio.insecure_channel(world.endpoint) as channel:
        listing = methods_of(channel, "/halfmq.v1.AdminService/ListTopics")
        assert await listing(admin_pb2.ListTopicsRequest(), good)
    return [
        jwt_of(exp=now - 5),
        jwt_of(nbf=now + 30),
        jwt_of(aud="another cluster"),
        jwt_of(iss="https://other.example"),
        jwt_of(ec.generate_private_key(ec.SECP256R1())),
    ]


async def test_whoever_is_not_known_gets_one_answer_to_every_call(world: World) -> None:
    shown: list[Any] = [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", world.tokens["root"]),),
        (("authorization", f"bearer {world.tokens['root']}x"),),
        (("authorization", f"Bearer {world.tokens['root']}"), ("authorization", f"Bearer {world.tokens['bob']}")),
        (("x-mq-client-id", "root"),),
        *((("authorization", f"Bearer {wrong}"),) for wrong in await wrong_jwts(world)),
        # What was good once, and is played again.
        (("authorization", f"Bearer {await withdrawn_token(world)}"),),
    ]
    answers = set()
    async with grpc.aio.insecure_channel(world.endpoint) as channel:
        for path, method in METHODS.items():
            request = GetMessageClass(method.input_type)()
            for metadata in shown:
                answers.add(await refusal(methods_of(channel, path)(request, metadata)))
    assert {code for code, _ in answers} == {grpc.StatusCode.UNAUTHENTICATED}
    assert len(answers) == 1


def sample(path: str, topic: str, group: str) -> Any:
    """A request that names existing things."""
    found = {
        "Prepare": transaction_pb2.PrepareRequest(producer_group=group, transactions=[half([message(topic)])]),
        "CheckTransactions": transaction_pb2.CheckTransactionsRequest(
            register=transaction_pb2.RegisterProducer(producer_group=group)
        ),
        "SendAndAck": producer_pb2.SendAndAckRequest(messages=[message(topic)], receipt_handles=["1.1.0"]),
        "Consume": consumer_pb2.ConsumeRequest(subscribe=consumer_pb2.Subscribe(consumer_group=group, topics=[topic])),
        "Pull": consumer_pb2.PullRequest(consumer_group=group, topics=[topic]),
        "ReadQueue": consumer_pb2.ReadQueueRequest(topic=topic),
        "MeasureQueue": consumer_pb2.MeasureQueueRequest(topic=topic),
        "QueueOffsets": consumer_pb2.QueueOffsetsRequest(topic=topic),
        "CommitOffsets": consumer_pb2.CommitOffsetsRequest(topic=topic, consumer_group=group),
        "CreateTopic": admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic)),
        "CreateGroup": admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=group)),
        "FindMessages": query_pb2.FindMessagesRequest(topic=topic, key="k"),
        "ListTransactions": admin_pb2.ListTransactionsRequest(producer_group=group),
        "SeekGroup": admin_pb2.SeekGroupRequest(group=group, topic=topic),
        "GrantAccess": access_pb2.GrantAccessRequest(
            rule=access_pb2.AccessRule(subject="user:bob", actions=["all"], kind="*", pattern="*")
        ),
        "RevokeAccess": access_pb2.RevokeAccessRequest(rule_ids=[1]),
        "SetQuota": access_pb2.SetQuotaRequest(quota=access_pb2.Quota(tenant="acme", topics=1)),
        "PrepareEpoch": sink_pb2.PrepareEpochRequest(
            epoch=sink_pb2.Epoch(sink="s", query_id="q"),
            attempt_id=new_id(),
            transaction_id=new_id(),
            messages=[message(topic)],
        ),
        "CommitEpoch": sink_pb2.CommitEpochRequest(epoch=sink_pb2.Epoch(sink="s", query_id="q")),
        "AbortEpoch": sink_pb2.AbortEpochRequest(epoch=sink_pb2.Epoch(sink="s", query_id="q")),
    }.get(path.rpartition("/")[2])
    if found is None:
        found = GetMessageClass(METHODS[path].input_type)()
        for field, value in (("topic", topic), ("group", group), ("sink", "s")):
            if field in found.DESCRIPTOR.fields_by_name and found.DESCRIPTOR.fields_by_name[field].message_type is None:
                setattr(found, field, value)
    return found


# What is judged item by item, or after a look-up; and lists, which show less.
JUDGED = {
    path
    for path, entry in CALLS.items()
    if entry.items and path in METHODS and not list(entry.needs(GetMessageClass(METHODS[path].input_type)()))
}


async def test_a_call_without_a_right_is_denied_whether_what_it_names_exists_or_not(world: World) -> None:
    """Bob has rights, but not these."""
    topic, group = await world.root.make_topic(), await world.root.make_group()
    await world.grant("user:bob", "all", "*", "bobs-*")
    answers = set()
    for path in METHODS.keys() - JUDGED:
        call = methods_of(world.bob.channel, path)
        for names in ((topic, group), (unique("no-topic"), unique("no-group"))):
            answers.add((path, *await refusal(call(sample(path, *names)))))
    assert {answer[1:] for answer in answers} == {(grpc.StatusCode.PERMISSION_DENIED, "No rule allows this to you.")}


async def test_items_are_judged_one_by_one(world: World) -> None:
    mine, other = await world.root.make_topic("mine"), await world.root.make_topic("other")
    await world.grant("user:alice", "produce", "topic", mine)
    await world.grant("user:alice", "produce", "group", "alices")
    sent = (
        await world.alice.producer.Send(
            producer_pb2.SendRequest(messages=[message(mine), message(other), message(unique("none")), message(mine)])
        )
    ).results
    assert [result.error.code for result in sent] == [0, DENIED, DENIED, 0]
    assert sent[1].error == sent[2].error
    prepared = (
        await world.alice.transactions.Prepare(
            transaction_pb2.PrepareRequest(
                producer_group="alices",
                transactions=[half([message(mine)]), half([message(mine), message(other)]), half([message(other)])],
            )
        )
    ).results
    assert [result.error.code for result in prepared] == [0, DENIED, DENIED]
    assert await world.root.bodies(other) == []
    committed = await world.alice.commit([prepared[0].transaction_id])
    assert committed[0].state == COMMITTED
    assert len(await world.root.bodies(mine)) == 3


async def test_transactions_are_of_those_who_may_produce_for_their_group(world: World) -> None:
    topic = await world.root.make_topic()
    for name in ("alice", "bob"):
        await world.grant(f"user:{name}", "produce", "topic", topic)
        await world.grant(f"user:{name}", "produce,check", "group", f"{name}s")
    (one,) = await world.alice.prepare("alices", topic, ["order"])
    unknown = new_id()
    for verdict in (world.bob.commit, world.bob.roll_back):
        refused, missing = await verdict([one, unknown])
        assert refused.error == missing.error
        assert (refused.error.code, refused.state) == (NOT_FOUND, missing.state)
    with pytest.raises(Refusal) as hidden:
        await world.bob.transaction(one)
    with pytest.raises(Refusal) as absent:
        await world.bob.transaction(unknown)
    assert (hidden.value.code, hidden.value.text) == (absent.value.code, absent.value.text)
    # Nor is bob asked about it, or heard.
    with pytest.raises(Refusal) as denied:
        await world.bob.answering("alices")
    assert denied.value.code is grpc.StatusCode.PERMISSION_DENIED
    bobs = await world.bob.answering("bobs")
    alices = await world.alice.answering("alices")
    check = await alices.next()
    answer = await bobs.answer(check, COMMIT)
    assert answer is not None
    assert answer.error.code == NOT_FOUND
    assert (await world.root.transaction(one)).state == PREPARED
    (done,) = await world.alice.commit([one])
    assert done.state == COMMITTED


async def test_receipts_are_of_those_who_may_consume_for_their_group(world: World) -> None:
    topic, group = await world.root.make_topic(), await world.root.make_group()
    await world.grant("user:alice", "consume", "topic", topic)
    await world.grant("user:alice", "consume", "group", group)
    await world.grant("user:bob", "all", "*", "bobs-*")
    await world.root.producer.Send(producer_pb2.SendRequest(messages=[message(topic, f"{n}") for n in range(3)]))
    handles = [each.receipt_handle for each in await world.alice.pull(group, topic)]
    assert len(handles) == 3
    gone = "ffffff.1.0"
    requests: list[tuple[str, Any]] = [
        ("Ack", consumer_pb2.AckRequest(receipt_handles=[handles[0], gone])),
        ("Nack", consumer_pb2.NackRequest(receipt_handles=[handles[0], gone])),
        ("ExtendLease", consumer_pb2.ExtendLeaseRequest(receipt_handles=[handles[0], gone])),
    ]
    for name, request in requests:
        refused, missing = (await getattr(world.bob.consumer, name)(request)).results
        assert refused.error == missing.error
        assert refused.error.reason
    done = (await world.alice.consumer.Ack(consumer_pb2.AckRequest(receipt_handles=handles))).results
    assert not any(result.HasField("error") for result in done)


async def test_lists_show_what_may_be_seen(world: World) -> None:
    seen, hidden = await world.root.make_topic("bobs-topic"), await world.root.make_topic("secret-topic")
    await world.grant("user:bob", "operate", "topic", "bobs-*")
    listed = [each.name for each in (await world.bob.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics]
    assert listed == [seen]
    assert {seen, hidden} <= {
        each.name for each in (await world.root.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics
    }
    assert not (await world.bob.admin.ListGroups(admin_pb2.ListGroupsRequest())).groups
    (one,) = await world.root.prepare("roots", hidden, ["order"])
    assert not (await world.bob.admin.ListTransactions(admin_pb2.ListTransactionsRequest())).transactions
    mine = (await world.root.admin.ListTransactions(admin_pb2.ListTransactionsRequest())).transactions
    assert one in {each.transaction_id for each in mine}


async def test_messages_are_found_by_those_who_may_see_their_topic(world: World) -> None:
    topic = await world.root.make_topic("secret")
    await world.grant("user:bob", "operate,produce", "topic", "bobs-*")
    later = message_pb2.Message(topic=topic, body=b"x")
    later.deliver_at.GetCurrentTime()
    later.deliver_at.seconds += 3600
    sent = (await world.root.producer.Send(producer_pb2.SendRequest(messages=[message(topic), later]))).results
    ids = [result.position.message_id for result in sent]
    unknown = new_id()
    for name, request in (("GetMessage", query_pb2.GetMessageRequest), ("GetTimeline", query_pb2.GetTimelineRequest)):
        texts = set()
        for own in (*ids, unknown):
            code, text = await refusal(getattr(world.bob.query, name)(request(message_id=own)))
            assert code is grpc.StatusCode.NOT_FOUND
            texts.add((text or "").replace(own, "ID"))
        assert len(texts) == 1
        assert await getattr(world.root.query, name)(request(message_id=ids[0]))
    recalled = (await world.bob.producer.Recall(producer_pb2.RecallRequest(message_ids=[*ids, unknown]))).results
    assert {result.error.code for result in recalled} == {NOT_FOUND}
    assert len({result.error.message.replace(result.message_id, "ID") for result in recalled}) == 1
    (done,) = (await world.root.producer.Recall(producer_pb2.RecallRequest(message_ids=[ids[1]]))).results
    assert done.HasField("recalled_at")


async def test_operators_have_the_name_that_they_are_known_by(world: World) -> None:
    topic = await world.root.make_topic()
    await world.grant("user:alice", "operate", "group", "shop")
    (one,) = await world.root.prepare("shop", topic, ["order"])
    resolving = admin_pb2.ResolveTransactionRequest(
        transaction_id=one, resolution=admin_pb2.RESOLUTION_COMMIT, operator="somebody else", reason="seen"
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.bob.admin.ResolveTransaction(resolving)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    await world.alice.admin.ResolveTransaction(resolving)
    found = await world.root.transaction(one)
    assert [action.operator for action in found.operator_actions] == ["alice"]


async def test_rules_change_while_it_serves(world: World) -> None:
    topic = await world.root.make_topic()
    request = producer_pb2.SendRequest(messages=[message(topic)])

    async def codes() -> list[int]:
        return [result.error.code for result in (await world.alice.producer.Send(request)).results]

    assert await codes() == [DENIED]
    await world.grant("user:alice", "produce", "topic", "*")
    assert await codes() == [0]
    number = await world.grant("user:alice", "produce", "topic", topic, deny=True)
    assert await codes() == [DENIED]
    gone = await world.root.admin.RevokeAccess(access_pb2.RevokeAccessRequest(rule_ids=[number, 1_000_000]))
    assert [(rule.rule_id, rule.subject, rule.deny, rule.made_by) for rule in gone.rules] == [
        (number, "user:alice", True, "root")
    ]
    assert await codes() == [0]
    # In the database, too.
    await asyncio.to_thread(
        halfmq, "access", "grant", "user:alice", "produce", "topic", topic, "--deny", f"--database={world.url}"
    )
    await asyncio.sleep(1.0)
    assert await codes() == [DENIED]
    listed = await asyncio.to_thread(halfmq, "access", "rules", f"--database={world.url}")
    (last,) = [line.split()[0] for line in listed.splitlines() if "deny" in line]
    await asyncio.to_thread(halfmq, "access", "revoke", last, f"--database={world.url}")
    await asyncio.sleep(1.0)
    assert await codes() == [0]


async def test_streams_end_when_what_they_were_let_in_for_is_forbidden(world: World) -> None:
    topic, group = await world.root.make_topic(), await world.root.make_group()
    await world.grant("user:alice", "consume", "topic", topic)
    await world.grant("user:alice", "consume", "group", group)
    await world.grant("user:alice", "check,produce", "group", "shop")
    await world.grant("user:alice", "produce", "topic", topic)
    checks = await world.alice.answering("shop")
    call = world.alice.consumer.Consume()
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
    await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    await call.write(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=100)))
    assert (await call.read()).HasField("subscribed")
    await world.root.send(topic, "first")
    delivered = await call.read()
    assert [each.message.body for each in delivered.deliveries.deliveries] == [b"first"]
    await world.grant("user:alice", "consume", "group", group, deny=True)
    await world.grant("user:alice", "check", "group", "shop", deny=True)
    await world.root.send(topic, "second")
    assert (await refusal(call.read()))[0] is grpc.StatusCode.PERMISSION_DENIED
    await world.root.prepare("shop", topic, ["order"])
    assert await checks.ended() is grpc.StatusCode.PERMISSION_DENIED
    assert not checks.seen
    # What was not delivered is there for others at once.
    assert {each.message.body for each in await world.root.pull(group, topic, wait=5)} == {b"second"}


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


def test_tokens_are_made_and_changed_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    first = halfmq("access", "token", "alice", f"--tokens={file}", "--role=shop").strip()
    second = halfmq("access", "token", "alice", f"--tokens={file}", "--tenant=acme").strip()
    alice = Principal("alice", frozenset({"shop"}), "acme")
    assert read_tokens(file.read_bytes()) == {hash_of(first): alice, hash_of(second): alice}
    third = halfmq("access", "token", "alice", f"--tokens={file}", "--replace").strip()
    assert read_tokens(file.read_bytes()) == {hash_of(third): alice}
    assert file.stat().st_mode & 0o777 == 0o600


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


async def test_a_withdrawn_token_decides_nothing_on_a_stream_that_is_open(world: World) -> None:
    topic = await world.root.make_topic()
    await world.grant("user:alice", "produce", "topic", topic)
    await world.grant("user:alice", "check", "group", "shop")
    checks = await world.alice.answering("shop")
    (one,) = await world.alice.prepare("shop", topic, ["order"])
    check = await checks.next()
    whole = world.file.read_bytes()
    world.file.write_bytes(b"\n\n".join(part for part in whole.split(b"\n\n") if b"alice" not in part))
    async with asyncio.timeout(30):
        while await is_known(world.alice):  # noqa: ASYNC110 - within a second
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    with pytest.raises(Refusal) as ended:
        await checks.answer(check, COMMIT)
    assert ended.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert (await world.root.transaction(one)).state == PREPARED
    world.file.write_bytes(whole)
