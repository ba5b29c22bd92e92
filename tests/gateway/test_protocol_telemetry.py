"""Telemetry, Heartbeat and NotifyClientTermination: how clients come, stay and go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from halfmq.v1 import admin_pb2
from support.brokers import BrokerProcess
from support.rocketmq_protocol import ClientType, Language, RawClient, Resolution, message, resource, unique

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from acceptance.client import Client

    Connect = Callable[..., RawClient]

pytest_plugins = ["support.rocketmq_fixtures"]

BODY_LIMIT = 4 * 1024 * 1024
CONSUMERS = [ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER]


async def test_settings_are_answered_with_a_status_and_settings(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    producer = raw.producer_settings(topic)
    stream = raw.telemetry()
    agreed = await stream.agree(producer)
    assert (agreed.client_type, agreed.publishing.max_body_size) == (ClientType.PRODUCER, BODY_LIMIT)
    assert agreed.publishing.topics == producer.publishing.topics
    # Every time that they are told, on the same stream, whatever it was before.
    assert await stream.agree(producer) == agreed
    consumer = raw.consumer_settings(group, topic)
    agreed = await stream.agree(consumer)
    assert agreed.subscription.subscriptions == consumer.subscription.subscriptions
    assert agreed.subscription.group == resource(group)
    assert agreed.backoff_policy.max_attempts == 17


async def test_the_group_decides_what_a_consumer_is_told(raw: RawClient, native: Client) -> None:
    group = unique("readers")
    wanted = admin_pb2.ConsumerGroup(name=group, fifo=True, max_attempts=5)
    for seconds in (3, 4):
        wanted.retry_delays.add().seconds = seconds
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    agreed = await raw.telemetry().agree(raw.consumer_settings(group, "orders"))
    assert agreed.subscription.fifo
    assert agreed.backoff_policy.max_attempts == 5
    assert [delay.seconds for delay in agreed.backoff_policy.customized_backoff.next] == [3, 4]


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_every_kind_of_consumer_is_taken(raw: RawClient, native: Client, kind: int) -> None:
    group = await native.make_group()
    agreed = await raw.telemetry().agree(raw.consumer_settings(group, kind=kind))
    assert (agreed.client_type, len(agreed.subscription.subscriptions)) == (kind, 0)


async def test_a_producer_needs_no_topics(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    stream = raw.telemetry()
    agreed = await stream.agree(raw.producer_settings())
    assert (len(agreed.publishing.topics), agreed.publishing.max_body_size) == (0, BODY_LIMIT)
    transaction = await raw.prepare(topic)
    await stream.check_of(transaction)
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK


async def test_topics_that_do_not_exist_yet_are_no_error(raw: RawClient) -> None:
    topic = unique("later")
    agreed = await raw.telemetry().agree(raw.producer_settings(topic))
    assert [each.name for each in agreed.publishing.topics] == [topic]


async def test_the_largest_body_is_told(connect_raw: Connect, tmp_path: Path) -> None:
    settings = {"max_body_bytes": 1000, "rocketmq": True, "auto_create": True}
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", **settings) as broker:
        raw = connect_raw(endpoint=broker.endpoint)
        agreed = await raw.telemetry().agree(raw.producer_settings("orders"))
        assert agreed.publishing.max_body_size == 1000
        assert (await raw.send_one("orders", b"x" * 1000)).status.code == Code.OK
        assert (await raw.send(message("orders", b"x" * 1001))).status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_bad_settings_end_the_stream_with_a_status_and_an_error(raw: RawClient, native: Client) -> None:
    """Java's and Go's clients look at the error only, and waited for settings as long as the stream went on."""
    group = await native.make_group()
    bad, absent = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    refusals = [
        (definition_pb2.Settings(client_type=ClientType.PRODUCER), Code.BAD_REQUEST, bad),
        (raw.producer_settings("not/a/topic"), Code.ILLEGAL_TOPIC, bad),
        (raw.producer_settings("fine", ""), Code.ILLEGAL_TOPIC, bad),
        (raw.consumer_settings(""), Code.ILLEGAL_CONSUMER_GROUP, bad),
        (raw.consumer_settings("not a group"), Code.ILLEGAL_CONSUMER_GROUP, bad),
        (raw.consumer_settings("nobody", language=Language.NODE_JS), Code.CONSUMER_GROUP_NOT_FOUND, absent),
    ]
    others = set(ClientType.values()) - set(CONSUMERS) | {99}
    refusals += [(raw.consumer_settings(group, kind=kind), Code.UNRECOGNIZED_CLIENT_TYPE, bad) for kind in others]
    for settings, code, error in refusals:
        stream = raw.telemetry()
        assert await stream.refused(settings) == code, settings
        assert await stream.ended() is error
    stream = raw.telemetry()
    assert await stream.refused(raw.consumer_settings("not a group")) == Code.ILLEGAL_CONSUMER_GROUP
    assert await stream.ended() is bad
    assert "'not a group'" in await stream.call.details()


async def test_consumers_of_an_unknown_group_start_and_are_refused_by_its_name(raw: RawClient, native: Client) -> None:
    """Without settings Go's client waits for ever at its start, and Java's does not tell why it failed."""
    topic, group = await native.make_topic(), unique("nobody")
    told = await raw.telemetry().agree(raw.consumer_settings(group))
    assert told.backoff_policy.max_attempts == 17
    received = await raw.receive(group, topic)
    assert received.code == Code.CONSUMER_GROUP_NOT_FOUND
    assert group in received.text


async def test_answers_to_commands_are_taken_and_not_answered(raw: RawClient) -> None:
    stream = raw.telemetry()
    results = [
        service_pb2.TelemetryCommand(thread_stack_trace=service_pb2.ThreadStackTrace(nonce="1")),
        service_pb2.TelemetryCommand(verify_message_result=service_pb2.VerifyMessageResult(nonce="1")),
        # Node's client answers in the wrong field.
        service_pb2.TelemetryCommand(verify_message_command=service_pb2.VerifyMessageCommand(nonce="1")),
        service_pb2.TelemetryCommand(status=definition_pb2.Status(code=Code.NOT_IMPLEMENTED)),
        service_pb2.TelemetryCommand(),
    ]
    for result in results:
        await stream.call.write(result)
    # The first that comes back is the answer to what follows.
    await stream.agree(raw.producer_settings())


async def test_node_is_told_its_settings_twice_and_others_once(raw: RawClient) -> None:
    """It waits for settings that come after all of its routes are known."""
    others = [await raw.as_producer("orders", language=each) for each in (Language.JAVA, Language.PYTHON)]
    streams = []
    for _ in range(2):
        streams.append(stream := raw.telemetry())
        agreed = await stream.agree(raw.producer_settings("orders", language=Language.NODE_JS))
        # Those who were told before have waited for longer now.
        again = await stream.next()
        assert (again.status.code, again.settings) == (Code.OK, agreed)
        # Once for a stream.
        await stream.agree(raw.producer_settings("orders", language=Language.NODE_JS))
    assert [stream.silent for stream in (*others, streams[0])] == [True, True, True]


@pytest.mark.parametrize("language", [77, -1])
async def test_a_client_of_a_language_that_came_later_is_taken(raw: RawClient, native: Client, language: int) -> None:
    topic = await native.make_topic()
    stream = raw.telemetry()
    assert (await stream.agree(raw.producer_settings(topic, language=language))).client_type == ClientType.PRODUCER
    assert await stream.agree(raw.producer_settings(topic))


async def test_a_stream_whose_client_has_nothing_more_to_say_ends(raw: RawClient) -> None:
    stream = await raw.as_producer("orders")
    await stream.call.done_writing()
    assert await stream.ended() is grpc.StatusCode.OK


async def test_without_a_name_there_is_no_stream(connect_raw: Connect) -> None:
    nameless = connect_raw("")
    stream = nameless.telemetry()
    assert (await stream.next()).status.code == Code.CLIENT_ID_REQUIRED
    assert await stream.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert await nameless.heartbeat() == Code.CLIENT_ID_REQUIRED
    assert await nameless.terminate() == Code.CLIENT_ID_REQUIRED
    assert (await nameless.receive("group", "topic")).code == Code.CLIENT_ID_REQUIRED


@pytest.mark.parametrize("headers", [{"x-mq-client-id": "x" * 256}, {"x-mq-client-id": "y" * 7000}])
async def test_a_name_that_is_too_long_is_refused_everywhere(connect_raw: Connect, headers: dict[str, str]) -> None:
    client = connect_raw(headers=headers)
    assert (await client.telemetry().next()).status.code == Code.BAD_REQUEST
    assert await client.heartbeat() == Code.BAD_REQUEST
    assert (await client.send(message("orders"))).status.code == Code.BAD_REQUEST
    assert (await client.receive("group", "topic")).code == Code.BAD_REQUEST


async def test_heartbeats_are_answered_whoever_sends_them(raw: RawClient, connect_raw: Connect) -> None:
    """After a restart of the broker clients go on without telling their settings."""
    for kind in [*ClientType.values(), 99]:
        assert await raw.heartbeat(kind) == Code.OK
        assert await connect_raw().heartbeat(kind, "nobody") == Code.OK


async def test_clients_come_and_go_as_they_like(raw: RawClient, native: Client) -> None:
    group = await native.make_group()
    for _ in range(2):
        assert await raw.terminate() == Code.OK
        assert await raw.terminate("any group") == Code.OK
        stream = await raw.as_consumer(group)
        assert await raw.heartbeat(ClientType.PUSH_CONSUMER, group) == Code.OK
    assert await raw.terminate(group) == Code.OK
    assert await stream.ended() is grpc.StatusCode.OK
    assert await raw.heartbeat(ClientType.PUSH_CONSUMER, group) == Code.OK


@pytest.mark.parametrize("settings_told", [True, False])
async def test_what_a_push_consumer_leaves_behind_comes_again_soon(
    raw: RawClient, native: Client, connect_raw: Connect, settings_told: bool
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    for number in range(4):
        await raw.send_one(topic, str(number), message_group="g" if number > 1 else "")
    leaving, staying = connect_raw(), connect_raw()
    if settings_told:
        await leaving.as_consumer(group, topic)
    received = await leaving.receive_some(group, topic, auto_renew=True)
    assert received.bodies == ["0", "1", "2"]
    assert (await leaving.ack(group, topic, received.handles[0])).status.code == Code.OK
    assert (await staying.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    assert await leaving.terminate(group) == Code.OK
    # Sooner than after its lease, which would have 30 s.
    found: list[Any] = []
    while len(found) < 2:
        found += (await staying.receive_some(group, topic, auto_renew=True)).messages
    assert sorted(each.body for each in found) == [b"1", b"2"]
    assert {each.system_properties.delivery_attempt for each in found} == {2}
    assert (await leaving.ack(group, topic, received.handles[1])).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_poll_that_does_not_say_how_long_it_waits_waits_as_the_settings_told(
    connect_raw: Connect, native: Client
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    raw = connect_raw()
    told = raw.consumer_settings(group, topic, kind=ClientType.SIMPLE_CONSUMER, language=Language.GOLANG)
    told.subscription.long_polling_timeout.FromSeconds(1)
    await raw.telemetry().agree(told)
    clock = asyncio.get_running_loop().time
    began = clock()
    assert (await raw.receive(group, topic, wait=None, seconds=60)).code == Code.MESSAGE_NOT_FOUND
    assert 0.9 <= clock() - began < 15
    # What a poll itself says counts more.
    began = clock()
    assert (await raw.receive(group, topic, wait=2.0, seconds=60)).code == Code.MESSAGE_NOT_FOUND
    assert clock() - began >= 1.9


async def test_streams_end_well_when_the_broker_does(connect_raw: Connect, tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", rocketmq=True, auto_create=True, drain=10) as broker:
        raw = connect_raw(endpoint=broker.endpoint)
        streams = [await raw.as_producer("orders"), await connect_raw(endpoint=broker.endpoint).as_producer("orders")]
        waiting = raw.open("ReceiveMessage", raw.receive_request("group", "orders", wait=20.0))
        pulling = raw.open(
            "PullMessage",
            service_pb2.PullMessageRequest(
                message_queue=definition_pb2.MessageQueue(topic=resource("orders")),
                long_polling_timeout={"seconds": 20},
            ),
        )
        # The calls are under way when their headers are there, or at the latest when a later call is answered.
        assert await raw.heartbeat() == Code.OK
        assert broker.stop() == 0
        for stream in streams:
            assert await stream.ended() is grpc.StatusCode.OK
        for call in (waiting, pulling):
            first = await call.read()
            assert first.status.code == Code.MESSAGE_NOT_FOUND
        assert broker.count("[error") == broker.count("incident") == 0
