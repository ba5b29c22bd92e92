"""QueryRoute and QueryAssignment: brokers as the client named them, or as they are announced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from halfmq.v1 import admin_pb2
from support.brokers import BrokerProcess
from support.rocketmq_protocol import Scheme, Type, endpoints, resource, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from acceptance.client import Client
    from support.rocketmq_protocol import RawClient

    Connect = Callable[..., RawClient]

pytest_plugins = ["support.rocketmq_fixtures"]

ANNOUNCED = "mq-1.example.com:8085, 10.0.0.2:8086,10.0.0.3:8086, [::1]:8087"
READ_WRITE = definition_pb2.Permission.READ_WRITE
ALWAYS = [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION]
LETTERS = [("", Code.ILLEGAL_TOPIC), ("a/b", Code.ILLEGAL_TOPIC), ("t" * 128, Code.ILLEGAL_TOPIC)]


async def route(client: RawClient, topic: str, where: Any, namespace: str = "") -> Any:
    request = service_pb2.QueryRouteRequest(topic=resource(topic, namespace), endpoints=where)
    return await client.call("QueryRoute", request)


async def assignment(client: RawClient, topic: str, group: str, where: Any) -> Any:
    request = service_pb2.QueryAssignmentRequest(
        topic=resource(topic, client.namespace), group=resource(group, client.namespace), endpoints=where
    )
    return await client.call("QueryAssignment", request)


@pytest.fixture(scope="module")
def announcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that announces addresses, and makes topics and groups."""
    folder = tmp_path_factory.mktemp("announcing")
    settings = {"rocketmq_endpoints": ANNOUNCED, "auto_create": True, "queue_count": 2}
    with BrokerProcess(f"sqlite:///{folder / 'halfmq.db'}", rocketmq=True, **settings) as broker:
        yield broker


@pytest.mark.parametrize(
    "where",
    [
        endpoints("127.0.0.1:8081"),
        endpoints("localhost:80", scheme=Scheme.DOMAIN_NAME),
        endpoints("[::1]:8081", scheme=Scheme.IPv6),
        endpoints("fe80::1:8081", scheme=Scheme.IPv6),
        endpoints("LocalHost:8081", scheme=Scheme.ADDRESS_SCHEME_UNSPECIFIED),
    ],
    ids=["IPv4", "name", "IPv6 in brackets", "IPv6", "unspecified"],
)
async def test_a_route_names_the_broker_as_the_client_did(raw: RawClient, native: Client, where: Any) -> None:
    """Another form of an address would be another broker to it."""
    topic = await native.make_topic(queues=3)
    answer = await route(raw, topic, where)
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert queue.topic == resource(topic)
        assert queue.permission == READ_WRITE
        assert list(queue.accept_message_types) == ALWAYS
        assert queue.broker.id == 0
        assert queue.broker.endpoints == where
        assert queue.broker.name == f"{where.addresses[0].host}:{where.addresses[0].port}"


async def test_all_addresses_are_one_broker_with_all_queues(raw: RawClient, native: Client) -> None:
    """As RocketMQ's proxies tell it: Java's and Go's clients begin only where every broker of a route answers."""
    topic = await native.make_topic(queues=2)
    where = endpoints("10.0.0.1:8081", "10.0.0.2:8081")
    answer = await route(raw, topic, where)
    told = [(queue.id, queue.broker.name, queue.broker.endpoints) for queue in answer.message_queues]
    assert told == [(number, "10.0.0.1:8081", where) for number in range(2)]
    # The same every time: clients compare.
    assert await route(raw, topic, where) == answer


@pytest.mark.parametrize("language", ["PYTHON", "HTTP"])
async def test_each_address_is_a_broker_to_clients_that_cannot_use_several(
    connect_raw: Connect, native: Client, language: str
) -> None:
    raw = connect_raw(headers={"x-mq-language": language})
    topic = await native.make_topic(queues=2)
    answer = await route(raw, topic, endpoints("10.0.0.1:8081", "10.0.0.2:8081"))
    told = [(queue.id, queue.broker.name, len(queue.broker.endpoints.addresses)) for queue in answer.message_queues]
    assert told == [(number, f"10.0.0.{host}:8081", 1) for number in range(2) for host in (1, 2)]
    assert {queue.broker.endpoints.scheme for queue in answer.message_queues} == {Scheme.IPv4}


async def test_a_topic_with_priorities_accepts_them(raw: RawClient, native: Client) -> None:
    topic = unique("priorities")
    wanted = admin_pb2.Topic(name=topic, queue_count=2, priority_levels=4)
    await native.call(native.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    answer = await route(raw, topic, endpoints("127.0.0.1:1"))
    assert [queue.id for queue in answer.message_queues] == list(range(len(answer.message_queues)))
    assert {tuple(queue.accept_message_types) for queue in answer.message_queues} == {(*ALWAYS, Type.PRIORITY)}


async def test_without_an_address_there_is_no_route(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    for where in (None, definition_pb2.Endpoints(scheme=Scheme.IPv4)):
        for answer in (await route(raw, topic, where), await assignment(raw, topic, group, where)):
            assert answer.status.code == Code.ILLEGAL_ACCESS_POINT
            assert "rocketmq_endpoints" in answer.status.message


@pytest.mark.parametrize(("topic", "code"), [*LETTERS, ("nowhere", Code.TOPIC_NOT_FOUND)])
async def test_a_route_to_nowhere(raw: RawClient, native: Client, topic: str, code: int) -> None:
    group = await native.make_group()
    where = endpoints("127.0.0.1:1")
    answer = await route(raw, topic, where)
    assert (answer.status.code, len(answer.message_queues)) == (code, 0)
    assigned = await assignment(raw, topic, group, where)
    assert (assigned.status.code, len(assigned.assignments)) == (code, 0)


async def test_what_is_announced_is_told_whatever_the_client_used(
    announcing: BrokerProcess, connect_raw: Connect
) -> None:
    """Numeric addresses of a kind are one broker's; names, of which clients take one only, are brokers of their own."""
    raw = connect_raw(endpoint=announcing.endpoint)
    topic = unique("made")
    name = endpoints("mq-1.example.com:8085", scheme=Scheme.DOMAIN_NAME)
    for where in (endpoints("127.0.0.1:1"), None):
        answer = await route(raw, topic, where)
        assert answer.status.code == Code.OK
        told = [(queue.id, queue.broker.name, queue.broker.endpoints) for queue in answer.message_queues]
        assert told[::3] == [(number, "mq-1.example.com:8085", name) for number in range(2)]
        assert [(queue, named) for queue, named, _ in told[1::3]] == [(0, "10.0.0.2:8086"), (1, "10.0.0.2:8086")]
        assert {address.host for _, _, at in told[1::3] for address in at.addresses} == {"10.0.0.2", "10.0.0.3"}
        assert [at for _, _, at in told[2::3]] == [endpoints("[::1]:8087", scheme=Scheme.IPv6)] * 2
        assigned = await assignment(raw, topic, unique("made"), where)
        brokers = [each.message_queue.broker.name for each in assigned.assignments]
        assert brokers == ["mq-1.example.com:8085", "10.0.0.2:8086", "[::1]:8087"]


async def test_clients_begin_with_different_addresses_of_those_announced(
    announcing: BrokerProcess, connect_raw: Connect
) -> None:
    """The first one that answers has all of a client's calls."""
    topic, begun = unique("made"), []
    for number in range(40):
        raw = connect_raw(endpoint=announcing.endpoint, client_id=f"client-{number}")
        first, again = [(await route(raw, topic, None)).message_queues[1].broker.endpoints for _ in range(2)]
        assert first == again
        begun.append(first.addresses[0].host)
    assert min(begun.count("10.0.0.2"), begun.count("10.0.0.3")) > 5


async def test_topics_and_groups_are_made_where_that_is_switched_on(
    announcing: BrokerProcess, connect_raw: Connect
) -> None:
    raw = connect_raw(endpoint=announcing.endpoint)
    routed, sent, received, group = (unique(name) for name in ("routed", "sent", "received", "group"))
    assert len((await route(raw, routed, None)).message_queues) == 2 * 3
    assert (await raw.send_one(sent)).status.code == Code.OK
    assert (await raw.receive_some(group, sent)).bodies == ["hello"]
    assert (await raw.receive(unique("group"), received)).code == Code.MESSAGE_NOT_FOUND
    assert (await route(raw, "not/this", None)).status.code == Code.ILLEGAL_TOPIC
    assert (await raw.prepare(unique("prepared"))) != ""


async def test_a_push_consumer_polls_each_broker_once(connect_raw: Connect, native: Client) -> None:
    raw = connect_raw(headers={"x-mq-language": "PYTHON"})
    topic, group = await native.make_topic(queues=3), await native.make_group()
    where = endpoints("10.0.0.1:8081", "10.0.0.2:8081")
    answer = await assignment(raw, topic, group, where)
    assert answer.status.code == Code.OK
    queues = [each.message_queue for each in answer.assignments]
    assert [(queue.id, queue.broker.name) for queue in queues] == [(-1, "10.0.0.1:8081"), (-1, "10.0.0.2:8081")]
    for queue in queues:
        assert queue.topic == resource(topic)
        assert (queue.permission, queue.broker.id) == (READ_WRITE, 0)
        assert len(queue.broker.endpoints.addresses) == 1
        assert list(queue.accept_message_types) == ALWAYS
    assert await assignment(raw, topic, group, where) == answer


async def test_a_fifo_group_polls_each_queue(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(queues=3), unique("fifo")
    wanted = admin_pb2.ConsumerGroup(name=group, fifo=True)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    answer = await assignment(raw, topic, group, endpoints("10.0.0.1:8081"))
    assert [each.message_queue.id for each in answer.assignments] == [0, 1, 2]


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ("", Code.ILLEGAL_CONSUMER_GROUP),
        ("a b", Code.ILLEGAL_CONSUMER_GROUP),
        ("g" * 121, Code.ILLEGAL_CONSUMER_GROUP),
        ("nobody", Code.CONSUMER_GROUP_NOT_FOUND),
    ],
)
async def test_a_group_that_is_not_there_has_no_assignment(
    raw: RawClient, native: Client, group: str, code: int
) -> None:
    answer = await assignment(raw, await native.make_topic(), group, endpoints("127.0.0.1:1"))
    assert (answer.status.code, len(answer.assignments)) == (code, 0)


async def test_namespaces_are_apart(connect_raw: Connect, native: Client) -> None:
    """Some clients name it in every resource, some in a header only, and some do both."""
    shop, bare = unique("shop"), unique("orders")
    names = [f"{shop}%{bare}", bare]
    for name in names:
        wanted = admin_pb2.Topic(name=name, queue_count=1)
        await native.call(native.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
        group = admin_pb2.ConsumerGroup(name=name)
        await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=group))
    inside, outside, header = connect_raw(namespace=shop), connect_raw(), connect_raw(headers={"x-mq-namespace": shop})
    where = endpoints("127.0.0.1:1")
    answer = await route(inside, bare, where, shop)
    # Its own words come back.
    assert {(queue.topic.resource_namespace, queue.topic.name) for queue in answer.message_queues} == {(shop, bare)}
    answer = await route(header, bare, where)
    assert {(queue.topic.resource_namespace, queue.topic.name) for queue in answer.message_queues} == {("", bare)}
    await inside.send_one(bare, "inside")
    await outside.send_one(bare, "outside")
    await header.send_one(bare, "header")
    (found,) = (await outside.receive_some(bare, bare)).messages
    assert (found.body, found.topic) == (b"outside", resource(bare))
    received = await inside.receive_some(bare, bare)
    assert received.bodies == ["inside", "header"]
    assert {(each.topic.resource_namespace, each.topic.name) for each in received.messages} == {(shop, bare)}
    assert (await header.ack(bare, bare, *received.handles)).status.code == Code.OK
    # From outside its names are as long as they are.
    assert (await outside.receive(names[0], names[0])).code == Code.MESSAGE_NOT_FOUND
    assert (await route(connect_raw(namespace=unique("other")), bare, where)).status.code == Code.TOPIC_NOT_FOUND


async def test_a_namespaces_transactions_are_its_own(connect_raw: Connect, native: Client) -> None:
    shop, bare = unique("shop"), unique("orders")
    for name in (f"{shop}%{bare}", bare):
        wanted = admin_pb2.Topic(name=name, queue_count=1)
        await native.call(native.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    inside, outside = connect_raw(namespace=shop), connect_raw()
    streams = [await inside.as_producer(bare), await outside.as_producer(bare)]
    ids = [await inside.prepare(bare, "inside"), await outside.prepare(bare, "outside")]
    for client, stream, transaction in zip((inside, outside), streams, ids, strict=True):
        for _ in range(2):
            question = await stream.next_check()
            assert question.transaction_id == transaction
            assert (question.message.topic.resource_namespace, question.message.topic.name) == (client.namespace, bare)
        assert await client.end(transaction) == Code.OK


async def test_a_namespaces_dead_letters_are_its_own(connect_raw: Connect, native: Client) -> None:
    shop, bare = unique("shop"), unique("orders")
    wanted = admin_pb2.Topic(name=f"{shop}%{bare}", queue_count=1)
    await native.call(native.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    for name in (bare, "operators"):
        group = admin_pb2.ConsumerGroup(name=f"{shop}%{name}")
        await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=group))
    client = connect_raw(namespace=shop)
    entry = await client.send_one(bare, "bad")
    (handle,) = (await client.receive_some(bare, bare)).handles
    assert await client.give_up(bare, bare, handle) == Code.OK
    (dead,) = (await client.receive_some("operators", f"%DLQ%{bare}")).messages
    assert (dead.topic.resource_namespace, dead.topic.name) == (shop, f"%DLQ%{bare}")
    assert dead.body == b"bad"
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == (bare, entry.message_id)
