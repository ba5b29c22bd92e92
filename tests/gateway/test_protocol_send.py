"""SendMessage: every type of message, every refusal with its code, batches, repetitions, and ids made twice."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from broker.rocketmq.names import producer_group_of
from broker.rocketmq.protocol import Code, definition_pb2
from halfmq.v1 import admin_pb2
from support.rocketmq_protocol import (
    Encoding,
    Resolution,
    Type,
    half,
    message,
    new_message_id,
    unique,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from acceptance.client import Client
    from support.rocketmq_protocol import RawClient

pytest_plugins = ["support.rocketmq_fixtures"]

BODY_LIMIT = 4 * 1024 * 1024


async def got(client: RawClient, native: Client, topic: str, count: int = 1) -> list[Any]:
    """The messages of a topic, as a new group of consumers gets them; there are no more."""
    group = await native.make_group()
    found: list[Any] = []
    while len(found) < count:
        received = await client.receive_some(group, topic)
        found += received.messages
        # So that message groups go on.
        assert (await client.ack(group, topic, *received.handles)).status.code == Code.OK
    assert len(found) == count
    assert (await client.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    return found


async def test_everything_that_a_message_says_arrives(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    sent = message(
        topic,
        b"\x00body\xff",
        properties={"colour": "blue", "empty": "", "größe": "🐙"},
        tag="TagA",
        keys=["order-1", "order 2"],
        born_host="a-host",
        trace_context="00-trace-span-01",
        # What clients write here counts for nothing.
        queue_id=77,
        delivery_attempt=12345,
        body_digest=definition_pb2.Digest(type=definition_pb2.DigestType.CRC32, checksum="nonsense"),
    )
    answer = await raw.send(sent)
    assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
    (entry,) = answer.entries
    assert (entry.status.code, entry.offset, entry.transaction_id, entry.recall_handle) == (Code.OK, 0, "", "")
    assert entry.message_id == sent.system_properties.message_id
    (found,) = await got(raw, native, topic)
    assert (found.topic.name, found.topic.resource_namespace, found.body) == (topic, "", b"\x00body\xff")
    assert dict(found.user_properties) == {"colour": "blue", "empty": "", "größe": "🐙"}
    own = found.system_properties
    assert own.message_id == entry.message_id
    assert (own.tag, list(own.keys), own.born_host) == ("TagA", ["order-1", "order 2"], "a-host")
    assert own.trace_context == "00-trace-span-01"
    assert (own.message_type, own.body_encoding) == (Type.NORMAL, Encoding.IDENTITY)
    assert (own.queue_id, own.queue_offset, own.delivery_attempt) == (0, 0, 1)
    assert own.body_digest.type == definition_pb2.DigestType.MD5
    assert own.body_digest.checksum == "B7102B8490A8DA9161D2149DFE88295F"
    assert own.store_host == "raw"
    assert own.receipt_handle
    assert own.invisible_duration.ToSeconds() == 30
    assert 0 < own.born_timestamp.ToMicroseconds() <= own.store_timestamp.ToMicroseconds()
    for absent in ("message_group", "delivery_timestamp", "dead_letter_queue", "priority", "lite_topic"):
        assert not own.HasField(absent), absent


@pytest.mark.parametrize(
    ("kind", "fields", "arrives_as"),
    [
        (Type.NORMAL, {}, Type.NORMAL),
        (Type.MESSAGE_TYPE_UNSPECIFIED, {}, Type.NORMAL),
        (Type.FIFO, {"message_group": "g"}, Type.FIFO),
        # The fields tell more than the type does.
        (Type.NORMAL, {"message_group": "g"}, Type.FIFO),
        (Type.DELAY, {"after": 0.2}, Type.DELAY),
        (Type.NORMAL, {"after": -5}, Type.DELAY),
        (Type.PRIORITY, {"priority": 2}, Type.PRIORITY),
        (Type.PRIORITY, {"priority": 0}, Type.PRIORITY),
        # Node's client sends priority 0 as no priority.
        (Type.NORMAL, {"priority": 0}, Type.NORMAL),
        (Type.FIFO, {"message_group": "g", "after": 0.2}, Type.FIFO),
        (17, {}, Type.NORMAL),
        # Some send an empty text where others send nothing.
        (Type.NORMAL, {"message_group": "", "tag": "", "keys": ["", "k"]}, Type.NORMAL),
    ],
)
async def test_every_type_of_message_arrives(
    raw: RawClient, native: Client, kind: int, fields: dict[str, Any], arrives_as: int
) -> None:
    topic = unique("typed")
    wanted = admin_pb2.Topic(name=topic, queue_count=1, priority_levels=3)
    await native.call(native.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    entry = await raw.send_one(topic, "typed", kind=kind, **fields)
    assert bool(entry.recall_handle) == (fields.get("after", 0) > 0)
    (found,) = await got(raw, native, topic)
    own = found.system_properties
    assert own.message_type == arrives_as
    assert own.message_group == fields.get("message_group", "")
    assert own.priority == fields.get("priority", 0)
    assert own.HasField("delivery_timestamp") == ("after" in fields)
    assert (own.tag, list(own.keys)) == ("", [key for key in fields.get("keys", []) if key])
    if fields.get("after", 0) > 0:
        assert own.store_timestamp.ToMicroseconds() >= own.delivery_timestamp.ToMicroseconds()


async def test_a_half_message_is_no_ones_until_it_is_committed(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    sent = half(topic, "half", tag="T", keys=["k"], properties={"a": "b"}, message_group="g")
    (entry,) = (await raw.send(sent)).entries
    assert entry.message_id == sent.system_properties.message_id
    assert entry.transaction_id
    assert (await raw.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    assert await raw.end(entry.transaction_id) == Code.OK
    (found,) = (await raw.receive_some(group, topic)).messages
    own = found.system_properties
    assert (found.body, dict(found.user_properties)) == (b"half", {"a": "b"})
    assert (own.message_id, own.tag, list(own.keys), own.message_group) == (entry.message_id, "T", ["k"], "g")


async def test_queues_are_chosen_here(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic(queues=8)
    for group in range(10):
        for number in range(4):
            await raw.send_one(topic, str(number), kind=Type.FIFO, message_group=f"g{group}", queue_id=number)
    for number in range(16):
        await raw.send_one(topic, str(number), queue_id=3)
    found = await got(raw, native, topic, 40 + 16)
    queues: dict[str, set[int]] = {}
    for each in found:
        queues.setdefault(each.system_properties.message_group, set()).add(each.system_properties.queue_id)
    assert len(queues.pop("")) > 1
    assert all(len(of_group) == 1 for of_group in queues.values())
    assert len(set.union(*queues.values())) > 1


def changed(**fields: Any) -> Callable[[Any], None]:
    """Sets system properties of a message."""

    def change(given: Any) -> None:
        for name, value in fields.items():
            if name == "body":
                given.body = value
            elif name == "properties":
                given.user_properties.update(value)
            elif name == "topic":
                given.topic.name = value
            elif name == "keys":
                given.system_properties.keys.extend(value)
            elif name == "at":
                given.system_properties.delivery_timestamp.seconds = value
            elif name == "after":
                own = given.system_properties
                own.delivery_timestamp.FromSeconds(own.born_timestamp.ToSeconds() + value)
            elif name == "recovery":
                given.system_properties.orphaned_transaction_recovery_duration.seconds = value
            elif name == "no_system":
                given.ClearField("system_properties")
            else:
                setattr(given.system_properties, name, value)

    return change


DAY = 24 * 3600
REFUSALS: dict[str, tuple[Callable[[Any], None], int]] = {
    "no topic": (changed(topic=""), Code.ILLEGAL_TOPIC),
    "a topic's letters": (changed(topic="orders/new"), Code.ILLEGAL_TOPIC),
    "a topic's length": (changed(topic="t" * 128), Code.ILLEGAL_TOPIC),
    "an unknown topic": (changed(topic="nowhere"), Code.TOPIC_NOT_FOUND),
    "no body": (changed(body=b""), Code.MESSAGE_BODY_EMPTY),
    "a large body": (changed(body=b"x" * (BODY_LIMIT + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    "no id": (changed(message_id=""), Code.ILLEGAL_MESSAGE_ID),
    "a blank id": (changed(message_id=" \t"), Code.ILLEGAL_MESSAGE_ID),
    "a long id": (changed(message_id="x" * 256), Code.ILLEGAL_MESSAGE_ID),
    "no system properties": (changed(no_system=True), Code.ILLEGAL_MESSAGE_ID),
    "a tag with a bar": (changed(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    "a tag's letters": (changed(tag="a\nb"), Code.ILLEGAL_MESSAGE_TAG),
    "a long tag": (changed(tag="x" * 16_385), Code.ILLEGAL_MESSAGE_TAG),
    "a key's letters": (changed(keys=["fine", "a\x01"]), Code.ILLEGAL_MESSAGE_KEY),
    "a long message group": (changed(message_group="x" * 65), Code.ILLEGAL_MESSAGE_GROUP),
    "a message group's letters": (changed(message_group="a\x7f"), Code.ILLEGAL_MESSAGE_GROUP),
    "a property without a name": (changed(properties={"": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a property of the broker": (changed(properties={"halfmq.priority": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    **{
        f"the reserved property {name}": (
            changed(properties={"fine": "", name: "x"}),
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        )
        for name in ("TAGS", "KEYS", "UNIQ_KEY", "__BORNHOST", "TIMER_DELIVER_MS")
    },
    "a property's letters": (changed(properties={"a\n": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a property's value": (changed(properties={"a": "x\x00"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "many properties": (
        changed(properties={f"p{number}": "" for number in range(129)}),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    "large properties": (changed(properties={"a": "x" * 16 * 1024}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "a long trace context": (changed(trace_context="x" * 1025), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "a time before 1970": (changed(at=-1), Code.ILLEGAL_DELIVERY_TIME),
    "a time too far away": (changed(after=DAY + 60), Code.ILLEGAL_DELIVERY_TIME),
    "a time out of this world": (changed(at=2**62), Code.ILLEGAL_DELIVERY_TIME),
    "fifo without a group": (changed(message_type=Type.FIFO), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "fifo with an empty group": (
        changed(message_type=Type.FIFO, message_group=""),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a delay without a time": (changed(message_type=Type.DELAY), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "priority without one": (changed(message_type=Type.PRIORITY), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "a priority that the topic does not have": (changed(priority=1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "a negative priority": (changed(priority=-1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "a lite message": (changed(message_type=Type.LITE, lite_topic="x"), Code.UNSUPPORTED),
    "a lite topic": (changed(lite_topic="x"), Code.UNSUPPORTED),
    "a body that is not compressed": (changed(body_encoding=Encoding.GZIP), Code.MESSAGE_CORRUPTED),
    "half of a compressed body": (
        changed(body=gzip.compress(b"x" * 1000)[:-9], body_encoding=Encoding.GZIP),
        Code.MESSAGE_CORRUPTED,
    ),
    "more than a compressed body": (
        changed(body=gzip.compress(b"one") + gzip.compress(b"two"), body_encoding=Encoding.GZIP),
        Code.MESSAGE_CORRUPTED,
    ),
    "a body that unpacks to too much": (
        changed(body=gzip.compress(b"\x00" * (BODY_LIMIT + 1)), body_encoding=Encoding.GZIP),
        Code.MESSAGE_BODY_TOO_LARGE,
    ),
    "a body that unpacks to nothing": (
        changed(body=zlib.compress(b""), body_encoding=Encoding.GZIP),
        Code.MESSAGE_BODY_EMPTY,
    ),
}
OF_TRANSACTIONS = {
    "a recovery too late": (changed(recovery=DAY + 1), Code.BAD_REQUEST),
    "a negative recovery": (changed(recovery=-1), Code.BAD_REQUEST),
}


async def refused(client: RawClient, given: Any, code: int) -> None:
    """Sends a message that must be refused."""
    answer = await client.send(given)
    assert answer.status.code == code, answer
    (entry,) = answer.entries
    assert entry.status == answer.status
    assert entry.status.message
    assert (entry.message_id, entry.transaction_id) == (given.system_properties.message_id, "")


@pytest.mark.parametrize("why", REFUSALS)
async def test_what_is_refused(raw: RawClient, native: Client, why: str) -> None:
    change, code = REFUSALS[why]
    topic, group = await native.make_topic(), await native.make_group()
    given = message(topic)
    change(given)
    await refused(raw, given, code)
    # The same as a half message, unless the type is what is wrong, or is gone.
    if given.system_properties.message_type == Type.NORMAL:
        given.system_properties.message_type = Type.TRANSACTION
        await refused(raw, given, code)
    assert (await raw.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("why", OF_TRANSACTIONS)
async def test_what_is_refused_of_transactions(raw: RawClient, native: Client, why: str) -> None:
    change, code = OF_TRANSACTIONS[why]
    given = half(await native.make_topic())
    change(given)
    await refused(raw, given, code)
    # Beside a good message it does not take that one's answer away.
    good = message(given.topic.name)
    answer = await raw.send(good, given)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.OK, code]


async def test_a_request_without_messages_is_refused(raw: RawClient) -> None:
    answer = await raw.send()
    assert (answer.status.code, len(answer.entries)) == (Code.MESSAGE_CORRUPTED, 0)


async def test_the_largest_of_everything_arrives(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    largest = message(
        topic,
        b"x" * BODY_LIMIT,
        message_id="i" * 255,
        properties={f"p{number:03}": "v" * 100 for number in range(128)},
        tag="t" * 255,
        message_group="g" * 64,
        trace_context="c" * 1024,
        born_host="h" * 1000,
        after=1,
    )
    largest.system_properties.delivery_timestamp.FromMicroseconds(1)
    assert (await raw.send(largest)).status.code == Code.OK
    (found,) = await got(raw, native, topic)
    assert found.body == largest.body
    assert found.user_properties == largest.user_properties
    own = found.system_properties
    assert (own.tag, own.message_group, own.message_id) == ("t" * 255, "g" * 64, "i" * 255)
    assert (own.trace_context, own.born_host) == ("c" * 1024, "h" * 255)


async def test_tags_are_as_long_as_at_rocketmqs_proxies(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    longest, other = "t" * 16_384, "ü" * 8192
    for tag in (longest, other, "short"):
        assert (await raw.send(message(topic, tag[:1], tag=tag))).status.code == Code.OK
    assert (await raw.send(message(topic, "x", tag=longest + "t"))).status.code == Code.ILLEGAL_MESSAGE_TAG
    received = await raw.receive_some(group, topic, tags=f"{longest} || short")
    assert [each.system_properties.tag for each in received.messages] == [longest, "short"]
    assert [dict(each.user_properties) for each in received.messages] == [{}, {}]
    refused = await raw.receive(group, topic, tags=longest + "t")
    assert refused.code == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
@pytest.mark.parametrize("size", [1, BODY_LIMIT])
async def test_compressed_bodies_are_unpacked(
    raw: RawClient, native: Client, pack: Callable[[bytes], bytes], size: int
) -> None:
    topic = await native.make_topic()
    await raw.send_one(topic, pack(b"x" * size), body_encoding=Encoding.GZIP)
    (found,) = await got(raw, native, topic)
    assert found.body == b"x" * size
    assert found.system_properties.body_encoding == Encoding.IDENTITY


async def test_of_a_batch_each_message_has_its_own_answer(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    batch = [message(topic, str(number)) for number in range(6)]
    batch[1].ClearField("body")
    batch[3].topic.name = "nowhere"
    batch[4].system_properties.message_type = Type.TRANSACTION
    answer = await raw.send(*batch)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.message_id for entry in answer.entries] == [each.system_properties.message_id for each in batch]
    codes = [Code.OK, Code.MESSAGE_BODY_EMPTY, Code.OK, Code.TOPIC_NOT_FOUND, Code.OK, Code.OK]
    assert [entry.status.code for entry in answer.entries] == codes
    assert [bool(entry.transaction_id) for entry in answer.entries] == [number == 4 for number in range(6)]
    assert [each.body for each in await got(raw, native, topic, 3)] == [b"0", b"2", b"5"]


async def test_a_batch_that_agrees_has_one_answer(raw: RawClient, native: Client) -> None:
    topic, other = await native.make_topic(), await native.make_topic()
    answer = await raw.send(message(topic, "0"), message(other, "1"), message(topic, "2"))
    assert answer.status.code == Code.OK
    assert [entry.offset for entry in answer.entries] == [0, 0, 1]
    answer = await raw.send(message("nowhere"), message("nowhere"))
    assert (answer.status.code, len(answer.entries)) == (Code.TOPIC_NOT_FOUND, 2)
    assert len(await got(raw, native, topic, 2)) == 2


async def test_a_message_that_is_sent_again_has_one_effect(
    raw: RawClient, native: Client, connect_raw: Callable[..., RawClient]
) -> None:
    topic = await native.make_topic()
    sent = message(topic, "once", keys=["k"], tag="t")
    answers = [await client.send(sent) for client in (raw, raw, connect_raw())]
    assert {(each.status.code, each.entries[0].offset, each.entries[0].message_id) for each in answers} == {
        (Code.OK, 0, sent.system_properties.message_id)
    }
    # Twice in one request, too.
    twice = message(topic, "twice")
    assert [entry.offset for entry in (await raw.send(twice, twice)).entries] == [1, 1]
    assert [each.body for each in await got(raw, native, topic, 2)] == [b"once", b"twice"]


async def test_what_is_sent_again_from_another_span_is_stored_once(raw: RawClient, native: Client) -> None:
    """Each try of a client may have a span of its own."""
    topic, name, of_half = await native.make_topic(), new_message_id(), new_message_id()
    spans = [f"00-{1:032x}-{number:016x}-01" for number in (1, 2)]
    for context in spans:
        traced: dict[str, Any] = {"properties": {"traceparent": context}, "trace_context": context}
        await raw.send_one(topic, "once", message_id=name, **traced)
        prepared = (await raw.send(half(topic, "half", message_id=of_half, **traced))).entries[0]
    assert await raw.end(prepared.transaction_id) == Code.OK
    found = await got(raw, native, topic, 2)
    assert [(each.body, each.user_properties["traceparent"]) for each in found] == [
        (b"once", spans[0]),
        (b"half", spans[0]),
    ]
    assert await native.undecided(producer_group_of(topic)) == {}


async def test_a_half_message_that_is_sent_again_is_one_transaction(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    sent = half(topic, "once")
    ids = {(await raw.send(sent)).entries[0].transaction_id for _ in range(3)}
    assert len(ids) == 1
    assert await raw.end(ids.pop()) == Code.OK
    assert [each.body for each in await got(raw, native, topic)] == [b"once"]


NAMES = [new_message_id(), new_message_id().lower(), "AC1E0A6C00002A9F0000000000000000", "any name, ünd any form"]


@pytest.mark.parametrize("name", NAMES, ids=["official", "lower case", "of RocketMQ 4", "free"])
async def test_a_name_of_any_form_comes_back_as_it_was(
    raw: RawClient, native: Client, name: str, connect_raw: Callable[..., RawClient]
) -> None:
    name = f"{name[:-10]}{unique('')[1:]}" if name == NAMES[3] else name
    topic = await native.make_topic()
    entries = [await raw.send_one(topic, "ordinary", message_id=name) for _ in range(2)]
    assert {(entry.message_id, entry.offset) for entry in entries} == {(name, 0)}
    other = connect_raw()
    prepared = (await other.send(half(topic, "half", message_id=name))).entries[0]
    assert prepared.message_id == name
    assert await other.end(prepared.transaction_id) == Code.OK
    found = await got(raw, native, topic, 2)
    assert [(each.body, each.system_properties.message_id) for each in found] == [(b"ordinary", name), (b"half", name)]


async def test_two_clients_that_make_the_same_id_lose_nothing(
    native: Client, connect_raw: Callable[..., RawClient]
) -> None:
    topic, name = await native.make_topic(), new_message_id()
    one, other = connect_raw(), connect_raw()
    for client, body in ((one, "one"), (other, "other")):
        # Each sends again, as after an answer that was lost.
        entries = [await client.send_one(topic, body, message_id=name) for _ in range(2)]
        assert {entry.message_id for entry in entries} == {name}
        assert len({entry.offset for entry in entries}) == 1
    found = await got(one, native, topic, 2)
    assert sorted(each.body for each in found) == [b"one", b"other"]
    assert {each.system_properties.message_id for each in found} == {name}


@pytest.mark.parametrize("before", ["", "commit", "roll back"])
async def test_two_producers_that_make_the_same_id_have_two_transactions(
    native: Client, connect_raw: Callable[..., RawClient], before: str
) -> None:
    topic, name = await native.make_topic(), new_message_id()
    one, other = connect_raw(), connect_raw()
    first = (await one.send(half(topic, "one", message_id=name))).entries[0]
    verdict = Resolution.ROLLBACK if before == "roll back" else Resolution.COMMIT
    if before:
        assert await one.end(first.transaction_id, verdict) == Code.OK
    entries = [(await other.send(half(topic, "other", message_id=name))).entries[0] for _ in range(2)]
    assert {entry.status.code for entry in entries} == {Code.OK}
    assert {entry.message_id for entry in entries} == {name}
    (second,) = {entry.transaction_id for entry in entries}
    assert second != first.transaction_id
    for client, transaction in ((one, first.transaction_id), (other, second)):
        assert await client.end(transaction, verdict if client is one else Resolution.COMMIT) == Code.OK
    wanted = [b"other"] if before == "roll back" else [b"one", b"other"]
    found = await got(one, native, topic, len(wanted))
    assert sorted(each.body for each in found) == wanted
    assert {each.system_properties.message_id for each in found} == {name}


@pytest.mark.parametrize("when", ["first", "while it waits", "after its commit", "after its rollback"])
async def test_an_ordinary_and_a_half_message_with_the_same_id_lose_nothing(
    native: Client, connect_raw: Callable[..., RawClient], when: str
) -> None:
    topic, name = await native.make_topic(), new_message_id()
    one, other = connect_raw(), connect_raw()
    if when == "first":
        await other.send_one(topic, "ordinary", message_id=name)
    transaction = await one.prepare(topic, "half", message_id=name)
    if when == "while it waits":
        await other.send_one(topic, "ordinary", message_id=name)
    verdict = Resolution.ROLLBACK if when == "after its rollback" else Resolution.COMMIT
    assert await one.end(transaction, verdict) == Code.OK
    if when.startswith("after"):
        entries = [await other.send_one(topic, "ordinary", message_id=name) for _ in range(2)]
        assert len({entry.offset for entry in entries}) == 1
    wanted = [b"ordinary"] if when == "after its rollback" else [b"half", b"ordinary"]
    found = await got(one, native, topic, len(wanted))
    assert sorted(each.body for each in found) == wanted
    assert {each.system_properties.message_id for each in found} == {name}
