"""What is refused, and how: unknown names and ids, names that only look alike, streams that begin wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from acceptance.client import PATIENCE, Client, Refusal, message, new_id, unique
from halfmq.v1 import admin_pb2, consumer_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

NOT_FOUND = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def _first(call: Any, *requests: Any) -> Any:
    try:
        for request in requests:
            await call.write(request)
        await call.done_writing()
        return await call.read()
    except grpc.aio.AioRpcError as error:
        raise Refusal(error) from None
    finally:
        call.cancel()


async def test_unknown_topic(client: Client) -> None:
    readers = await client.make_group()
    (prepared,) = await client.prepare_items(
        unique("shop"), [transaction_pb2.HalfTransaction(messages=[message("nowhere")])]
    )
    assert (prepared.error.reason, prepared.error.field) == ("TOPIC_NOT_FOUND", "messages[0].topic")
    assert (await client.send("nowhere")).error.reason == "TOPIC_NOT_FOUND"
    for refused in (
        client.call(client.admin.DescribeTopic, admin_pb2.DescribeTopicRequest(topic="nowhere")),
        client.call(client.admin.DeleteTopic, admin_pb2.DeleteTopicRequest(topic="nowhere")),
        client.call(client.consumer.QueueOffsets, consumer_pb2.QueueOffsetsRequest(topic="nowhere")),
        client.pull(readers, "nowhere"),
        client.log("nowhere"),
    ):
        with pytest.raises(Refusal) as error:
            await refused
        assert (error.value.code, error.value.reason) == (NOT_FOUND, "TOPIC_NOT_FOUND")
        assert "CreateTopic" in error.value.text or "no topic" in error.value.text


async def test_unknown_consumer_group(client: Client) -> None:
    topic = await client.make_topic()
    for refused in (
        client.pull("nobody", topic),
        client.call(client.admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group="nobody")),
        client.call(client.admin.DeleteGroup, admin_pb2.DeleteGroupRequest(group="nobody")),
    ):
        with pytest.raises(Refusal) as error:
            await refused
        assert (error.value.code, error.value.reason) == (NOT_FOUND, "GROUP_NOT_FOUND")


async def test_unknown_and_impossible_transaction_ids(client: Client) -> None:
    for call in (client.commit, client.roll_back):
        results = await call([new_id(), "", "018f2a6e", "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5g"])
        assert [result.error.reason for result in results] == ["TRANSACTION_NOT_FOUND", *["INVALID_ARGUMENT"] * 3]
        assert [result.state for result in results] == [0] * 4
    with pytest.raises(Refusal) as missing:
        await client.transaction(new_id())
    assert (missing.value.code, missing.value.reason) == (NOT_FOUND, "TRANSACTION_NOT_FOUND")
    with pytest.raises(Refusal) as impossible:
        await client.transaction("x")
    assert impossible.value.code is INVALID


@pytest.mark.parametrize(
    "name", ["trailing ", " leading", "NUL\0", "a b", "a/b", "a.b", "übung", "a\n", "", "a'b", "a\\b", 'a"b', "a?b"]
)
async def test_names_that_cannot_be(client: Client, name: str) -> None:
    topic = await client.make_topic()
    (prepared,) = await client.prepare_items(
        unique("shop"), [transaction_pb2.HalfTransaction(messages=[message(name)])]
    )
    assert (prepared.error.reason, prepared.error.field) == ("NAME_INVALID", "messages[0].topic")
    assert (await client.send(name)).error.reason == "NAME_INVALID"
    for refused in (
        client.prepare_items(name, [transaction_pb2.HalfTransaction(messages=[message(topic)])]),
        client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name))),
        client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=name))),
        client.pull(name, topic),
        client.answering(name),
    ):
        with pytest.raises(Refusal) as error:
            await refused
        assert error.value.code is INVALID


async def test_names_that_only_look_alike_are_different(client: Client) -> None:
    name = unique("Orders")
    alike = [name, name.lower(), name.upper(), f"{name}_", f"{name}-", f"_{name}", f"%{name}", f"{name}|"]
    for each in alike:
        await client.call(
            client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=each, queue_count=1))
        )
        await client.call(
            client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=each))
        )
    with pytest.raises(Refusal) as taken:
        await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name)))
    assert (taken.value.code, taken.value.reason) == (grpc.StatusCode.ALREADY_EXISTS, "TOPIC_EXISTS")
    for each in alike:
        ids = await client.prepare(each, each, [f"for {each}"])
        await client.commit(ids)
    for each in alike:
        assert await client.bodies(each) == [f"for {each}"]
        assert await client.consume_all(each, each) == [f"for {each}"]


async def test_producer_groups_that_look_alike_are_asked_apart(client: Client) -> None:
    topic, group = await client.make_topic(), unique("Shop")
    upper, lower = await client.answering(group.upper()), await client.answering(group.lower())
    (one,) = await client.prepare(group.upper(), topic, ["loud"])
    (two,) = await client.prepare(group.lower(), topic, ["quiet"])
    assert (await upper.next()).transaction_id == one
    assert (await lower.next()).transaction_id == two


async def test_streams_that_begin_wrongly(client: Client) -> None:
    topic, readers = await client.make_topic(), await client.make_group()
    answer = transaction_pb2.CheckTransactionsRequest(answer=transaction_pb2.CheckAnswer(transaction_id=new_id()))
    register = transaction_pb2.CheckTransactionsRequest(
        register=transaction_pb2.RegisterProducer(producer_group=unique("shop"))
    )
    early = consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=1))
    for call, requests, word in (
        (client.transactions.CheckTransactions, [answer], "register"),
        (client.transactions.CheckTransactions, [transaction_pb2.CheckTransactionsRequest()], "register"),
        (client.transactions.CheckTransactions, [], "register"),
        (client.consumer.Consume, [early], "subscribe"),
        (client.consumer.Consume, [], "subscribe"),
    ):
        with pytest.raises(Refusal, match=word) as error:
            await _first(call(timeout=PATIENCE), *requests)
        assert error.value.code is INVALID
    stream = client.transactions.CheckTransactions(timeout=PATIENCE)
    await stream.write(register)
    registered = await stream.read()
    assert isinstance(registered, transaction_pb2.CheckTransactionsResponse)
    assert registered.HasField("registered")
    await stream.write(register)
    with pytest.raises(grpc.aio.AioRpcError, match="Only answers"):
        await stream.read()
    for subscribe, code in (
        (consumer_pb2.Subscribe(consumer_group="nobody", topics=[topic]), NOT_FOUND),
        (consumer_pb2.Subscribe(consumer_group=readers, topics=["nowhere"]), NOT_FOUND),
        (consumer_pb2.Subscribe(consumer_group=readers), INVALID),
    ):
        with pytest.raises(Refusal) as error:
            await _first(client.consumer.Consume(timeout=PATIENCE), consumer_pb2.ConsumeRequest(subscribe=subscribe))
        assert error.value.code is code


async def test_an_answer_to_a_check_that_was_never_asked(client: Client) -> None:
    checks = await client.answering(unique("shop"))
    for transaction_id, reason in ((new_id(), "TRANSACTION_NOT_FOUND"), ("x", "INVALID_ARGUMENT")):
        check = transaction_pb2.TransactionCheck(transaction_id=transaction_id, check_number=1)
        result = await checks.answer(check, transaction_pb2.CHECK_VERDICT_COMMIT)
        assert result is not None
        assert result.error.reason == reason
    check = transaction_pb2.TransactionCheck(transaction_id=new_id(), check_number=1)
    result = await checks.answer(check, 77)  # type: ignore[arg-type]
    assert result is not None
    assert result.error.reason == "INVALID_ARGUMENT"


async def test_receipts_that_cannot_be(client: Client) -> None:
    request = consumer_pb2.AckRequest(receipt_handles=["", "x", "1.2", "1.2.-3", "f" * 20 + ".1.1", "7fffffff.1.0"])
    results = (await client.call(client.consumer.Ack, request)).results
    assert [result.error.reason for result in results] == [*["RECEIPT_INVALID"] * 5, "RECEIPT_GONE"]


async def test_operators_requests_that_cannot_be(client: Client) -> None:
    for request, word in (
        (admin_pb2.ResolveTransactionRequest(transaction_id=new_id(), reason="why"), "resolution"),
        (admin_pb2.ResolveTransactionRequest(transaction_id="x", resolution=1, reason="why"), "UUID"),  # type: ignore[arg-type]
    ):
        with pytest.raises(Refusal, match=word) as error:
            await client.call(client.admin.ResolveTransaction, request)
        assert error.value.code is INVALID
    for resolution in (1, 2, 3):
        with pytest.raises(Refusal) as error:
            await client.call(
                client.admin.ResolveTransaction,
                admin_pb2.ResolveTransactionRequest(
                    transaction_id=new_id(),
                    resolution=resolution,  # type: ignore[arg-type]
                    reason="why",
                ),
            )
        assert error.value.reason == "TRANSACTION_NOT_FOUND"
    for listing in (
        admin_pb2.ListTransactionsRequest(state=transaction_pb2.TRANSACTION_STATE_COMMITTED, topic="orders"),
        admin_pb2.ListTransactionsRequest(state=transaction_pb2.TRANSACTION_STATE_PARKED, decided=True),
        admin_pb2.ListTransactionsRequest(decided=True, source=cast("transaction_pb2.VerdictSource.ValueType", -1)),
        admin_pb2.ListTransactionsRequest(source=transaction_pb2.VERDICT_SOURCE_CHECK),
        admin_pb2.ListTransactionsRequest(decided_from=Timestamp(seconds=1)),
        admin_pb2.ListTransactionsRequest(page_size=1001),
        admin_pb2.ListTransactionsRequest(page_token="not a token"),
        admin_pb2.ListTransactionsRequest(page_token="zz.zz"),
    ):
        with pytest.raises(Refusal) as error:
            await client.call(client.admin.ListTransactions, listing)
        assert error.value.code is INVALID


async def test_unknown_names_are_made_where_that_is_switched_on(
    kind: AnyKind, new_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Client]
) -> None:
    client = connect(new_broker(kind, auto_create=True, queue_count=1))
    ids = await client.prepare("shop", "orders", ["order"])
    await client.commit(ids)
    assert await client.consume_all("readers", "orders") == ["order"]
