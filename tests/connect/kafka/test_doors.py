"""What cannot be carried: a clear error that names it, and nothing lost or skipped."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from consumer_sdk import QueueReader
from halfmq_connect.kafka import (
    BridgeSettings,
    KafkaBridge,
    MessagesMissing,
    MessageTooLarge,
    RecordRefused,
    TopicReplaced,
)
from halfmq_connect.kafka.cluster import Cluster
from halfmq_connect.kafka.errors import ConfigurationError
from producer_sdk import Admin, Message, Producer
from support.kafka import committed, new_topic, registered, wait_until
from support.spark import forget

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess

LIMIT = 20_000


def bodies(records: list[Any]) -> list[bytes]:
    return sorted(record.value() for record in records)


def test_a_topic_that_kafka_does_not_have(topic: str, to_kafka: Callable[..., Any]) -> None:
    with to_kafka(create_topics=False) as running:
        failure = running.failed()
    assert isinstance(failure, ConfigurationError)
    assert f"Kafka has no topic '{topic}'" in str(failure)
    assert "--create-topics" in str(failure)


def test_a_topic_that_halfmq_does_not_have(name: str, to_kafka: Callable[..., Any]) -> None:
    with to_kafka() as running:
        assert running.failed().reason == "TOPIC_NOT_FOUND"


def test_a_message_over_the_limit_stops_it_and_what_is_before_it_is_carried(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target = new_topic(kafka, 1, max_message_bytes=LIMIT)
    producer.send(topic, "before", message_group="g")
    # The overhead of a batch of this record; the largest that fits is found out by the error.
    large = producer.send(topic, b"x" * LIMIT, message_group="g")
    producer.send(topic, "behind", message_group="g")
    with to_kafka({topic: target}, create_topics=False) as running:
        failure = running.failed()
    assert isinstance(failure, MessageTooLarge)
    assert (failure.message_id, failure.limit) == (large.message_id, LIMIT)
    assert failure.position == f"{topic}/{large.queue}/{large.offset}"
    assert "--too-large-to" in str(failure)
    assert bodies(committed(kafka, target, 1)) == [b"before"]


def test_the_limit_is_exactly_kafkas(kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any]) -> None:
    target = new_topic(kafka, 1, max_message_bytes=LIMIT)
    producer.send(topic, b"x" * LIMIT, message_group="g", keys=["k"], tag="t", properties={"p": "q" * 200})
    with to_kafka({topic: target}, create_topics=False) as running:
        over = running.failed().size - LIMIT
    # One message has a number of the same length, so its other fields take as many bytes.
    producer.send(topic, b"x" * (LIMIT - over), message_group="h", keys=["k"], tag="t", properties={"p": "q" * 200})
    diverted = f"{topic}-large"
    with Admin(_endpoint(producer)) as admin:
        admin.create_topic(diverted)
    with to_kafka({topic: target}, create_topics=False, too_large_to=diverted):
        (record,) = committed(kafka, target, 1)
    assert len(record.value()) == LIMIT - over


def _endpoint(producer: Producer) -> str:
    return producer._core._link.endpoints[0]


def test_messages_over_the_limit_go_to_a_topic_of_their_own(
    kafka: str, topic: str, broker: BrokerProcess, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target = new_topic(kafka, 1, max_message_bytes=LIMIT)
    diverted = f"{topic}-large"
    admin.create_topic(diverted, queues=1)
    producer.send(topic, "before", message_group="g")
    large = producer.send(
        topic, b"x" * LIMIT, message_group="g", keys=["k"], tag="t", properties={"p": "q"}, dedup_key="d"
    )
    producer.send(topic, "behind", message_group="g")
    for called in (topic, topic):  # The second run has nothing to do.
        with to_kafka({topic: target}, called, create_topics=False, too_large_to=diverted):
            assert bodies(committed(kafka, target, 2)) == [b"before", b"behind"]
    with QueueReader(broker.endpoint) as reader:
        (letter,) = reader.read_queue(diverted, 0, 0).messages
    assert (letter.body, letter.tag, letter.keys) == (b"x" * LIMIT, "t", ("k",))
    assert letter.properties["p"] == "q"
    assert letter.properties["origin.message_id"] == large.message_id
    assert f"{LIMIT} are allowed" in letter.properties["bridge.reason"]


def test_one_that_was_diverted_under_another_limit_is_not_sent_again(
    kafka: str, topic: str, broker: BrokerProcess, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    """A bridge was killed after it had sent it and before the transaction that passes it over; the limit was raised."""
    diverted = f"{topic}-large"
    admin.create_topic(diverted, queues=1)
    large = producer.send(topic, b"x" * LIMIT, message_group="g")
    producer.send(topic, "behind", message_group="g")
    own = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{topic}/{large.message_id}"))
    producer.send(diverted, b"x" * LIMIT, message_id=own, properties={"bridge.reason": "a lower limit"})
    target = new_topic(kafka, 1, max_message_bytes=LIMIT)
    with to_kafka({topic: target}, topic, create_topics=False, too_large_to=diverted):
        assert bodies(committed(kafka, target, 1)) == [b"behind"]
    with QueueReader(broker.endpoint) as reader:
        (letter,) = reader.read_queue(diverted, 0, 0).messages
    assert letter.properties["bridge.reason"] == "a lower limit"


FILLING = {f"p{n}": "q" * 1020 for n in range(15)}
"""With its group, tag and keys about as much as halfmq allows."""


def test_a_message_with_many_properties_at_the_limit_and_one_byte_over_it(
    kafka: str, topic: str, broker: BrokerProcess, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target = new_topic(kafka, 1, max_message_bytes=LIMIT)
    diverted = f"{topic}-large"
    admin.create_topic(diverted, queues=1)
    own: dict[str, Any] = {"keys": ["k" * 1000], "tag": "t", "properties": FILLING}
    # Its length takes as many bytes as that of one that fits.
    producer.send(topic, b"x" * 5000, message_group="g", **own)
    with to_kafka({topic: target}, create_topics=False) as running:
        fits = 5000 - (running.failed().size - LIMIT)
    producer.send(topic, b"a" * fits, message_group="g", **own)
    producer.send(topic, b"b" * (fits + 1), message_group="g", **own)
    producer.send(topic, "behind", message_group="g")
    with to_kafka({topic: target}, create_topics=False, too_large_to=diverted):
        assert bodies(committed(kafka, target, 2)) == [b"a" * fits, b"behind"]
    with QueueReader(broker.endpoint) as reader:
        letters = reader.read_queue(diverted, 0, 0).messages
    assert [letter.body for letter in letters] == [b"x" * 5000, b"b" * (fits + 1)]
    # There was no room for what else is told of it.
    assert all((letter.tag, letter.keys, letter.properties) == ("t", ("k" * 1000,), FILLING) for letter in letters)


def test_a_message_that_is_too_large_on_the_way_of_the_large_ones_as_well(
    kafka: str, topic: str, broker: BrokerProcess, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    small, larger, diverted = new_topic(kafka, 1, max_message_bytes=LIMIT), new_topic(kafka, 1), f"{topic}-large"
    admin.create_topic(diverted, queues=1)
    producer.send(topic, b"x" * LIMIT, message_group="g")
    producer.send(topic, b"y" * 2_000_000, message_group="g")
    with to_kafka({topic: small, diverted: larger}, create_topics=False, too_large_to=diverted) as running:
        failure = running.failed()
    assert isinstance(failure, MessageTooLarge)
    assert failure.position == f"{diverted}/0/1"
    assert bodies(committed(kafka, larger, 1)) == [b"x" * LIMIT]


def test_a_record_that_kafka_refuses_stops_it(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target = new_topic(kafka, 1, cleanup_policy="compact")
    place = producer.send(topic, "without a key")
    with to_kafka({topic: target}, create_topics=False) as running:
        failure = running.failed()
    assert isinstance(failure, RecordRefused)
    assert failure.position == f"{topic}/{place.queue}/{place.offset}"
    assert committed(kafka, target, 0) == []


def test_what_comes_before_a_record_that_kafka_refuses_is_carried(
    kafka: str, name: str, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target = new_topic(kafka, 1, cleanup_policy="compact")
    admin.create_topic(name, queues=1)
    producer.send(name, "before", keys=["k"])
    producer.send(name, "without a key")
    producer.send(name, "behind", keys=["k"])
    with to_kafka({name: target}, create_topics=False) as running:
        failure = running.failed()
    assert isinstance(failure, RecordRefused)
    assert failure.position == f"{name}/0/1"
    assert bodies(committed(kafka, target, 1)) == [b"before"]


@pytest.mark.parametrize("allowed", [False, True])
def test_messages_that_retention_took(
    kafka: str,
    topic: str,
    broker: BrokerProcess,
    admin: Admin,
    producer: Producer,
    to_kafka: Callable[..., Any],
    allowed: bool,
) -> None:
    producer.send_many([Message(topic, f"a{n}", message_group="g") for n in range(10)])
    with to_kafka():
        committed(kafka, topic, 10)
    producer.send_many([Message(topic, f"b{n}", message_group="g") for n in range(7)])
    admin.update_topic(topic, retention=0.001)
    assert forget(broker, topic) == 17
    admin.update_topic(topic, retention=3600)
    producer.send(topic, "c", message_group="g")
    if allowed:
        with to_kafka(skip_missing=True):
            assert len(committed(kafka, topic, 11)) == 11
        return
    with to_kafka() as running:
        failure = running.failed()
    assert isinstance(failure, MessagesMissing)
    assert failure.count == 7
    assert failure.position.endswith("/10")
    assert "--skip-missing" in str(failure)
    assert len(committed(kafka, topic, 10)) == 10


def test_a_topic_that_was_made_anew(
    kafka: str, topic: str, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    producer.send(topic, "old", message_group="g")
    with to_kafka():
        committed(kafka, topic, 1)
    admin.delete_topic(topic)
    admin.create_topic(topic)
    producer.send(topic, "new", message_group="g")
    with to_kafka() as running:
        assert isinstance(running.failed(), TopicReplaced)
    with to_kafka(skip_missing=True):
        assert bodies(committed(kafka, topic, 2)) == [b"new", b"old"]


def test_another_number_of_shards(kafka: str, topic: str, to_kafka: Callable[..., Any], producer: Producer) -> None:
    producer.send(topic, "x")
    with to_kafka():
        committed(kafka, topic, 1)
    with to_kafka(shards=3) as running:
        failure = running.failed()
    assert isinstance(failure, ConfigurationError)
    assert "this bridge has 4 shards" in str(failure)


def test_two_replicas_of_one_name_are_told_and_double_nothing(
    topic: str, producer: Producer, kafka: str, to_kafka: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    producer.send(topic, "x")
    with to_kafka(instance="one"):
        committed(kafka, topic, 1)
        with to_kafka(instance="one"):
            wait_until(lambda: "has the name 'one' as well" in caplog.text)
            producer.send_many([Message(topic, f"{n}") for n in range(100)])
            assert len(committed(kafka, topic, 101)) == 101


def test_a_loop_is_refused_also_over_several_topics(
    kafka: str,
    topic: str,
    admin: Admin,
    producer: Producer,
    to_kafka: Callable[..., Any],
    from_kafka: Callable[..., Any],
) -> None:
    other = f"{topic}-other"
    admin.create_topic(other)
    producer.send(topic, "x")
    with to_kafka():
        committed(kafka, topic, 1)
    with from_kafka({topic: topic}) as running:
        failure = running.failed()
    assert isinstance(failure, ConfigurationError)
    assert failure.field == "topics"
    assert f"through to-kafka/{topic}" in str(failure)
    with from_kafka({topic: other}) as running, QueueReader(admin_endpoint(admin)) as reader:
        _arrived(reader, other, 1)
    # topic -> Kafka's topic -> other -> Kafka's topic again.
    with to_kafka({other: topic}, f"{topic}-2") as running:
        assert "a loop" in str(running.failed())


def test_a_loop_through_what_is_too_large_is_refused(
    kafka: str, topic: str, admin: Admin, to_kafka: Callable[..., Any], from_kafka: Callable[..., Any]
) -> None:
    diverted, small, larger = f"{topic}-large", new_topic(kafka, 1), new_topic(kafka, 1)
    admin.create_topic(diverted)

    # Two that divert to what the other one carries: a message that is too large for both would go round.
    with to_kafka({topic: small}, f"{topic}-1", too_large_to=diverted):
        wait_until(lambda: registered(kafka, f"to-kafka/{topic}-1"))
    with to_kafka({diverted: larger}, f"{topic}-2", too_large_to=topic) as running:
        assert f"a loop: halfmq {_topic_id(admin, diverted)}" in str(running.failed())
    # topic -> what is too large for it -> Kafka -> topic.
    with to_kafka({diverted: larger}, f"{topic}-2"):
        wait_until(lambda: registered(kafka, f"to-kafka/{topic}-2"))
    with from_kafka({larger: topic}, f"{topic}-3") as running:
        failure = running.failed()
    assert isinstance(failure, ConfigurationError)
    assert f"through to-kafka/{topic}-1, to-kafka/{topic}-2" in str(failure)


def test_a_bridge_may_carry_what_it_diverts(kafka: str, topic: str, admin: Admin, to_kafka: Callable[..., Any]) -> None:
    diverted, small, larger = f"{topic}-large", new_topic(kafka, 1), new_topic(kafka, 1)
    admin.create_topic(diverted)
    with to_kafka({topic: small, diverted: larger}, too_large_to=diverted) as running:
        wait_until(lambda: registered(kafka, f"to-kafka/{topic}"))
    assert running.failure is None


def _topic_id(admin: Admin, topic: str) -> str:
    with QueueReader(admin_endpoint(admin)) as reader:
        return reader.queue_offsets(topic)[0].topic_id


def admin_endpoint(admin: Admin) -> str:
    return admin._core._link.endpoints[0]


def _arrived(reader: QueueReader, topic: str, count: int) -> None:
    wait_until(lambda: sum(each.max_offset for each in reader.queue_offsets(topic)) == count)


@pytest.mark.parametrize(
    ("field", "given", "settings"),
    [
        ("name", {"name": "a b"}, {}),
        ("topics", {"topics": []}, {}),
        ("topics", {"topics": {"orders": "a/b"}}, {}),
        ("topics", {"topics": {"orders": 7}}, {}),
        ("topics", {"topics": ["%DLQ%shipping"]}, {}),
        ("bootstrap.servers", {"kafka": {}}, {}),
        ("acks", {"kafka": {"bootstrap.servers": "k:1", "acks": "1"}}, {}),
        ("endpoint", {"endpoint": "nowhere"}, {}),
        ("shards", {}, {"shards": 0}),
        ("linger", {}, {"linger": -1}),
        ("start", {}, {"start": "now"}),
        ("skip_missing", {}, {"skip_missing": "no"}),
        ("instance", {}, {"instance": ""}),
        ("session_timeout", {}, {"session_timeout": 0}),
    ],
)
def test_settings_that_cannot_work(field: str, given: dict[str, Any], settings: dict[str, Any]) -> None:
    own: dict[str, Any] = {"endpoint": "h:1", "kafka": "k:1", "topics": ["orders"], "name": "shop", **given}
    with pytest.raises(ConfigurationError) as refused:
        KafkaBridge(own["endpoint"], own["kafka"], own["topics"], name=own["name"], settings=BridgeSettings(**settings))
    assert refused.value.field == field


def test_a_setting_that_kafkas_client_refuses(broker: BrokerProcess, topic: str) -> None:
    bridge = KafkaBridge(
        broker.endpoint,
        {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": "/nowhere"},
        [topic],
        name=topic,
    )
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        bridge.run()


def test_a_refused_loop_leaves_what_was_written_down(
    kafka: str, topic: str, admin: Admin, to_kafka: Callable[..., Any], from_kafka: Callable[..., Any]
) -> None:
    target, other = new_topic(kafka, 1), f"{topic}-other"
    admin.create_topic(other)

    with from_kafka({target: other}, create_topics=True):
        wait_until(lambda: registered(kafka, f"from-kafka/{topic}"))
    with to_kafka({topic: target}):
        wait_until(lambda: registered(kafka, f"to-kafka/{topic}"))
        before = registered(kafka, f"to-kafka/{topic}")
        with to_kafka({other: target}) as running:
            assert "a loop" in str(running.failed())
        assert registered(kafka, f"to-kafka/{topic}") == before


def test_kafka_is_asked_once_for_what_a_shard_needs(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, asked = Cluster.topics, []

    def counted(self: Cluster, names: Any) -> Any:
        asked.append(names)
        return topics(self, names)

    monkeypatch.setattr(Cluster, "topics", counted)
    producer.send(topic, "x")
    with to_kafka(shards=1):
        committed(kafka, topic, 1)
    # The doors, the topic of positions, and the shard.
    assert len(asked) == 3
