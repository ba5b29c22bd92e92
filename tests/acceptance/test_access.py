"""Access: nobody gets in who is not known, nobody does what no rule allows, and refusals tell nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from acceptance.client import COMMIT, COMMITTED, PREPARED, Client, Refusal, half, message, new_id, unique
from broker.api.access import CALLS
from halfmq.v1 import (
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

    def __getattr__(self, name: str) -> Client:
        return self.clients[name]

    async def grant(self, *arguments: str) -> None:
        """Grants, and waits until the broker knows it."""
        await asyncio.to_thread(halfmq, "access", "grant", *arguments, f"--database={self.url}")
        await asyncio.sleep(1.0)


@pytest.fixture
async def world(kind: AnyKind, new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "tokens.toml"
    tokens = {name: halfmq("access", "token", name, f"--tokens={file}").strip() for name in NAMES}
    broker = new_broker(kind, access=True, access_tokens=file, access_without_tls=True, first_check=0.3)
    halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={broker.database}")
    await asyncio.sleep(1.0)
    clients = {name: Client(broker.endpoint, token) for name, token in tokens.items()}
    yield World(broker.database, tokens, clients, broker.endpoint)
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


async def test_whoever_is_not_known_gets_one_answer_to_every_call(world: World) -> None:
    shown: list[Any] = [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", world.tokens["root"]),),
        (("authorization", f"bearer {world.tokens['root']}x"),),
        (("authorization", f"Bearer {world.tokens['root']}"), ("authorization", f"Bearer {world.tokens['bob']}")),
        (("x-mq-client-id", "root"),),
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
    await world.grant("user:alice", "produce", "topic", topic, "--deny")
    assert await codes() == [DENIED]
    listed = await asyncio.to_thread(halfmq, "access", "rules", f"--database={world.url}")
    (number,) = [line.split()[0] for line in listed.splitlines() if "deny" in line]
    await asyncio.to_thread(halfmq, "access", "revoke", number, f"--database={world.url}")
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
    await world.grant("user:alice", "consume", "group", group, "--deny")
    await world.grant("user:alice", "check", "group", "shop", "--deny")
    await world.root.send(topic, "second")
    assert (await refusal(call.read()))[0] is grpc.StatusCode.PERMISSION_DENIED
    await world.root.prepare("shop", topic, ["order"])
    assert await checks.ended() is grpc.StatusCode.PERMISSION_DENIED
    assert not checks.seen
    # What was not delivered is there for others at once.
    assert {each.message.body for each in await world.root.pull(group, topic, wait=5)} == {b"second"}
