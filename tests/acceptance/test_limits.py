"""Every limit of messages, names and operators at one below, at, and one above, over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import (
    COMMITTED,
    PREPARED,
    Client,
    Refusal,
    half,
    message,
    new_id,
    refused_field,
    unique,
)
from halfmq.v1 import admin_pb2, message_pb2, producer_pb2, sink_pb2, sink_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MIB = 1024 * 1024


async def _check_message(client: Client, accepted: list[message_pb2.Message], refused: message_pb2.Message) -> str:
    """Prepares and sends messages; all that is accepted must come out as it went in. The refusal's field."""
    group = unique("shop")
    results = await client.prepare_items(group, [half([each]) for each in [*accepted, refused]])
    assert [result.state for result in results] == [PREPARED] * len(accepted) + [0]
    committed = await client.commit([result.transaction_id for result in results[:-1]])
    assert [result.state for result in committed] == [COMMITTED] * len(accepted)
    for each, result in zip(accepted, committed, strict=True):
        place = result.released[0]
        found = next(m for m in await client.log(place.topic, place.queue) if m.offset == place.offset)
        assert (found.body, found.tag, list(found.keys), dict(found.properties), found.message_group) == (
            each.body,
            each.tag,
            list(each.keys),
            dict(each.properties),
            each.message_group,
        )
    sent = await client.send(refused.topic, refused.body, **_rest(refused))  # type: ignore[arg-type]
    assert sent.error.message == results[-1].error.message
    assert results[-1].error.code == INVALID.value[0]
    return f"{results[-1].error.field} {results[-1].error.reason}"


def _rest(each: message_pb2.Message) -> dict[str, Any]:
    return {
        "tag": each.tag,
        "keys": list(each.keys),
        "properties": dict(each.properties),
        "message_group": each.message_group,
    }


async def test_body_of_four_mebibytes(client: Client) -> None:
    topic = await client.make_topic()
    accepted = [message(topic, b"\0"), message(topic, b"a" * (4 * MIB - 1)), message(topic, b"\xff" * (4 * MIB))]
    assert await _check_message(client, accepted, message(topic, b"c" * (4 * MIB + 1))) == (
        "messages[0].body BODY_TOO_LARGE"
    )
    assert await _check_message(client, [message(topic, b"\n")], message(topic, b"")) == (
        "messages[0].body INVALID_ARGUMENT"
    )


async def test_text_counts_as_its_bytes(client: Client) -> None:
    topic = await client.make_topic()
    fits = message_pb2.Message(topic=topic, text="ü" * (2 * MIB))
    longer = message_pb2.Message(topic=topic, text="ü" * (2 * MIB) + "u")
    results = await client.prepare_items(unique("shop"), [half([fits]), half([longer])])
    assert [result.error.reason for result in results] == ["", "BODY_TOO_LARGE"]


async def test_a_transaction_larger_than_a_body(client: Client) -> None:
    topic, one = await client.make_topic(), new_id()
    await client.prepare_items(unique("shop"), [half([message(topic, b"%d" % n * 4 * MIB) for n in range(6)], one)])
    (result,) = await client.commit([one])
    assert len(result.released) == 6
    assert [len(found.body) for found in await client.log(topic)] == [4 * MIB] * 6


async def test_a_request_above_the_transports_bound(client: Client) -> None:
    topic = await client.make_topic()
    with pytest.raises(Refusal) as error:
        await client.prepare_items(unique("shop"), [half([message(topic, bytes(4 * MIB))]) for _ in range(9)])
    assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_body_limit_of_ones_own(new_broker: Callable[..., BrokerProcess], connect: Any) -> None:
    client = connect(new_broker("sqlite", max_body_bytes=100))
    topic = await client.make_topic()
    accepted = [message(topic, b"a" * 99), message(topic, b"a" * 100)]
    assert await _check_message(client, accepted, message(topic, b"a" * 101)) == "messages[0].body BODY_TOO_LARGE"


@pytest.mark.parametrize(
    ("accepted", "refused", "field"),
    [
        pytest.param(
            [{"properties": {f"name{n}": "v" for n in range(count)}} for count in (127, 128)],
            {"properties": {f"name{n}": "v" for n in range(129)}},
            "properties PROPERTIES_TOO_LARGE",
            id="128 properties",
        ),
        pytest.param(
            [{"properties": {"name": "v" * (16_384 - 4 - shorter)}} for shorter in (1, 0)],
            {"properties": {"name": "v" * (16_384 - 3)}},
            "properties PROPERTIES_TOO_LARGE",
            id="16 KiB of properties",
        ),
        pytest.param(
            [{"properties": {"n" * (16_384 - 1 - shorter): "v"}} for shorter in (1, 0)],
            {"properties": {"n" * 16_384: "v"}},
            "properties PROPERTIES_TOO_LARGE",
            id="16 KiB of a name",
        ),
        pytest.param(
            [{"keys": ["k" * 8000, "k" * (8384 - shorter)]} for shorter in (1, 0)],
            {"keys": ["k" * 8000, "k" * 8385]},
            "properties PROPERTIES_TOO_LARGE",
            id="16 KiB of keys",
        ),
        pytest.param(
            [{"properties": {"ü": "ü" * (8191 - shorter)}} for shorter in (1, 0)],
            {"properties": {"ü": "ü" * 8191 + "u"}},
            "properties PROPERTIES_TOO_LARGE",
            id="16 KiB counted in bytes",
        ),
        pytest.param([{"tag": "t" * n} for n in (255, 256, 16_384)], {"tag": "t" * 16_385}, "tag", id="tag of 16 KiB"),
        pytest.param([{"tag": "ü" * n} for n in (255, 256, 8192)], {"tag": "ü" * 8193}, "tag", id="tag in bytes"),
        pytest.param(
            [{"tag": '"' * 16_000, "keys": ["\\" * 384]}],
            {"tag": "t" * 16_000, "keys": ["k" * 385]},
            "properties PROPERTIES_TOO_LARGE",
            id="a long tag beside keys",
        ),
        pytest.param(
            [{"message_group": "g" * n} for n in (63, 64)],
            {"message_group": "g" * 65},
            "message_group",
            id="message group of 64 bytes",
        ),
        pytest.param(
            [{"keys": [chr(0x100 + n) for n in range(count)]} for count in (999, 1000)],
            {"keys": [chr(0x100 + n) for n in range(1001)]},
            "keys PROPERTIES_TOO_LARGE",
            id="1000 keys",
        ),
        pytest.param([{"properties": {"a": ""}}], {"properties": {"": "a"}}, "properties", id="empty name"),
        pytest.param([{"tag": "a b"}], {"tag": "a|b"}, "tag", id="bar in a tag"),
        pytest.param(
            [{"properties": {"a": "b c"}}], {"properties": {"a": "b\nc"}}, "properties", id="control in value"
        ),
        pytest.param([{"keys": ["k'\\\"?%s"]}], {"keys": ["k\0"]}, "keys", id="control in key"),
        pytest.param([{"tag": "snow ☃ and 🐘"}], {"tag": "a\x7f"}, "tag", id="control in tag"),
        pytest.param(
            [{"properties": {"Halfmq.x": "1", "halfmq": "2"}}],
            {"properties": {"halfmq.x": "1"}},
            "properties",
            id="the broker's own properties",
        ),
    ],
)
async def test_message_fields(
    client: Client, accepted: list[dict[str, Any]], refused: dict[str, Any], field: str
) -> None:
    topic = await client.make_topic()
    ok = [message(topic, f"{number}", **rest) for number, rest in enumerate(accepted)]
    told = field if " " in field else f"{field} INVALID_ARGUMENT"
    assert await _check_message(client, ok, message(topic, "refused", **refused)) == f"messages[0].{told}"


async def test_names_of_topics_and_groups(client: Client) -> None:
    def topic(length: int) -> Any:
        name = unique("t").ljust(length, "-")
        request = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name, queue_count=1))
        return client.call(client.admin.CreateTopic, request)

    def group(length: int) -> Any:
        name = unique("g").ljust(length, "|")
        request = admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=name))
        return client.call(client.admin.CreateGroup, request)

    for length in (126, 127):
        name = (await topic(length)).topic.name
        assert len(name) == length
        await client.commit(await client.prepare("p" * 120, name, ["long name"]))
        assert await client.bodies(name) == ["long name"]
    for length in (119, 120):
        name = (await group(length)).group.name
        assert await client.consume_all(name, await client.make_topic()) == []
    await refused_field(topic(128), "topic.name")
    await refused_field(group(121), "group.name")
    orders = await client.make_topic()
    await client.prepare("p" * 119, orders, ["x"])
    await refused_field(client.prepare("p" * 121, orders, ["x"]), "producer_group")


async def test_queues_and_attempts(client: Client) -> None:
    def topic(queues: int) -> Any:
        wanted = admin_pb2.Topic(name=unique("wide"), queue_count=queues)
        return client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))

    def group(attempts: int) -> Any:
        wanted = admin_pb2.ConsumerGroup(name=unique("g"), max_attempts=attempts)
        return client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))

    for queues in (1, 1023, 1024):
        assert (await topic(queues)).topic.queue_count == queues
    await refused_field(topic(1025), "topic.queue_count")
    for attempts in (1, 999, 1000):
        assert (await group(attempts)).group.max_attempts == attempts
    await refused_field(group(1001), "group.max_attempts")


async def test_items_of_a_request(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    for count in (4095, 4096):
        ids = await client.prepare(group, topic, ["x"] * count)
        results = await client.commit(ids)
        assert {result.state for result in results} == {COMMITTED}
        again = await client.roll_back(ids)
        assert {result.error.reason for result in again} == {"VERDICT_CONFLICT"}
    assert len(await client.log(topic)) == 4095 + 4096
    await refused_field(client.prepare_items(group, [half([message(topic)])] * 4097), "transactions")
    await refused_field(client.commit([new_id()] * 4097), "transaction_ids")
    await refused_field(client.roll_back([new_id()] * 4097), "transaction_ids")
    await refused_field(client.prepare_items(group, []), "transactions")
    await refused_field(client.commit([]), "transaction_ids")
    assert not await client.undecided(group)


async def test_items_of_a_send(client: Client) -> None:
    topic = await client.make_topic()

    def send(count: int) -> Any:
        request = producer_pb2.SendRequest(messages=[message(topic)] * count)
        return client.call(client.producer.Send, request)

    for count in (1, 4095, 4096):
        results = (await send(count)).results
        assert [result.HasField("position") for result in results] == [True] * count
    await refused_field(send(4097), "messages")
    await refused_field(send(0), "messages")
    assert len(await client.log(topic)) == 1 + 4095 + 4096


async def test_messages_of_a_transaction(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = [new_id() for _ in range(3)]
    items = [half([message(topic)] * count, one) for count, one in zip((999, 1000, 1001), ids, strict=True)]
    results = await client.prepare_items(group, items)
    assert [(result.state, result.error.field) for result in results] == [
        (PREPARED, ""),
        (PREPARED, ""),
        (0, "messages"),
    ]
    late = half([message(topic)], ids[0])
    late.first_position = 999
    (added,) = await client.prepare_items(group, [late])
    assert added.state == PREPARED
    late.first_position = 1000
    (refused,) = await client.prepare_items(group, [late])
    assert refused.error.field == "messages"
    committed = await client.commit(ids[:2])
    assert [len(result.released) for result in committed] == [1000, 1000]


async def test_first_check_delay(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    items = []
    for seconds in (24 * 3600 - 1, 24 * 3600, 24 * 3600 + 1):
        item = half([message(topic)])
        item.first_check_delay.FromSeconds(seconds)
        items.append(item)
    negative = half([message(topic)])
    negative.first_check_delay.FromSeconds(-1)
    results = await client.prepare_items(group, [*items, negative])
    assert [result.error.field for result in results] == ["", "", "first_check_delay", "first_check_delay"]


async def test_reasons_and_client_ids(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = await client.prepare(group, topic, ["x"] * 3)
    for one, length in zip(ids, (499, 500), strict=False):
        await client.roll_back([one], "r" * length)
        assert (await client.transaction(one)).op.reason == "r" * length
    await refused_field(client.roll_back([ids[2]], "r" * 501), "reason")
    assert (await client.transaction(ids[2])).state == PREPARED
    for length in (254, 255):
        checks = await client.answering(unique("shop"), "c" * length)
        await checks.leave()
    with pytest.raises(Refusal, match=r"^register\.client_id"):
        await client.answering(unique("shop"), "c" * 256)


async def test_reason_of_an_operator(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = await client.prepare(group, topic, ["x"] * 3, check_after=3600)

    def resolve(one: str, reason: str) -> Any:
        request = admin_pb2.ResolveTransactionRequest(
            transaction_id=one, resolution=admin_pb2.RESOLUTION_ROLLBACK, reason=reason, operator="ada"
        )
        return client.call(client.admin.ResolveTransaction, request)

    for one, reason in zip(ids, ("r" * 499, "ü" * 500), strict=False):
        await resolve(one, reason)
        found = await client.transaction(one)
        assert [found.op.reason, *(action.reason for action in found.operator_actions)] == [reason] * 2
    for reason in ("r" * 501, "", " "):
        await refused_field(resolve(ids[2], reason), "reason")
    assert (await client.transaction(ids[2])).state == PREPARED


async def test_messages_of_a_commit_of_an_epoch(broker: BrokerProcess, client: Client) -> None:
    topic = await client.make_topic()

    def commit(number: int, *counts: int) -> sink_pb2.CommitEpochRequest:
        transactions = [
            sink_pb2.EpochTransaction(transaction_id=new_id(), messages=[message(topic)] * count) for count in counts
        ]
        epoch = sink_pb2.Epoch(sink=unique("sink"), query_id="q", number=number)
        return sink_pb2.CommitEpochRequest(epoch=epoch, transactions=transactions)

    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        sinks = sink_pb2_grpc.SinkServiceStub(channel)
        for counts in ([1000] * 4 + [97], [1] * 4097, [0] * 4097):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await sinks.CommitEpoch(commit(0, *counts))
            assert refused.value.code() is INVALID
            assert "transactions: 4097" in str(refused.value.details())
            assert "several epochs" in str(refused.value.details())
        assert await client.bodies(topic) == []
        assert (await sinks.CommitEpoch(commit(1, 1000, 1000, 1000, 1000, 96))).messages == 4096
