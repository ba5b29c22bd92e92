"""Topics of Kafka in halfmq: what arrives, exactly once, whoever carries it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient, NewPartitions
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from client_core.connection import BackgroundRunner, BrokerLink
from connect.kafka.conftest import Running, Stored
from halfmq.v1 import message_pb2
from halfmq_connect.cli.metrics import of_bridge
from halfmq_connect.kafka import BridgeError, KafkaSource, MessagesMissing, RecordRefused, TopicReplaced
from halfmq_connect.kafka.cluster import Cluster
from halfmq_connect.kafka.epochs import PartitionSink, Superseded
from producer_sdk import Admin, Producer
from support.alerts import Scrape, fires
from support.kafka import PrivateKafka, committed, new_topic, wait_until
from support.metrics import samples_of, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from prometheus_client.core import Metric

    from support.brokers import BrokerProcess


@pytest.fixture
def records(kafka: str) -> Iterator[KafkaProducer]:
    """A producer of Kafka."""
    made = KafkaProducer({"bootstrap.servers": kafka})
    yield made
    made.flush(30)


def test_every_part_of_a_record_has_its_place(
    kafka: str, topic: str, records: KafkaProducer, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 1)
    headers = [("text", b"v"), ("twice", b"1"), ("twice", b"2"), ("binary", b"\xff\x00"), ("halfmq.odd", b"o")]
    records.produce(source, b"value", b"key", headers=headers, timestamp=1_700_000_000_123)
    records.produce(source, None, b"tombstone")
    records.produce(source, b"", b"\xfe\xff")
    records.produce(source, b"long key", b"k" * 65)
    records.flush(30)
    with from_kafka({source: topic}):
        found = {message.properties["kafka.position"]: message for message in stored.await_count(4)}
    first, second, third, fourth = (found[f"{source}/0/{offset}"] for offset in range(4))
    assert (first.body, first.message_group) == (b"value", "key")
    assert first.properties == {
        "text": "v",
        "twice": "1",
        "twice.2": "2",
        "binary.base64": "/wA=",
        "origin.odd": "o",
        "kafka.position": f"{source}/0/0",
        "kafka.timestamp": "1700000000123",
    }
    assert (second.body, second.properties["kafka.value"], second.message_group) == (b"\0", "null", "tombstone")
    assert (third.body, third.properties["kafka.value"]) == (b"\0", "empty")
    assert third.properties["kafka.key.base64"] == "/v8="
    assert len(third.message_group or "") == 64
    assert fourth.properties["kafka.key"] == "k" * 65


@pytest.mark.parametrize(("key_as", "group", "keys"), [("key", None, ("k",)), ("none", None, ())])
def test_what_a_key_becomes(
    kafka: str,
    topic: str,
    records: KafkaProducer,
    stored: Stored,
    from_kafka: Callable[..., Any],
    key_as: str,
    group: str | None,
    keys: tuple[str, ...],
) -> None:
    source = new_topic(kafka, 1)
    records.produce(source, b"v", b"k")
    records.flush(30)
    with from_kafka({source: topic}, key_as=key_as):
        (message,) = stored.await_count(1)
    assert (message.message_group, message.keys) == (group, keys)


def test_a_message_that_went_there_and_back_is_the_same(
    kafka: str,
    topic: str,
    admin: Admin,
    broker: BrokerProcess,
    producer: Producer,
    to_kafka: Callable[..., Any],
    from_kafka: Callable[..., Any],
) -> None:
    back = f"{topic}-back"
    admin.create_topic(back)
    place = producer.send(topic, "x", tag="t", keys=["a", "b"], properties={"p": "q"}, message_group="g")
    with to_kafka():
        committed(kafka, topic, 1)
    with from_kafka({topic: back}):
        (message,) = Stored(broker.endpoint, back).await_count(1)
    assert (message.text, message.tag, message.keys, message.message_group) == ("x", "t", ("a", "b"), "g")
    assert message.properties["p"] == "q"
    assert message.properties["origin.message_id"] == place.message_id


def test_committed_records_alone_come_once_and_it_goes_on_where_it_was(
    kafka: str, topic: str, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 2)
    writer = KafkaProducer({"bootstrap.servers": kafka, "transactional.id": source})
    writer.init_transactions(30)
    expected = 0
    for _ in range(2):
        for number in range(4):
            writer.begin_transaction()
            for each in range(50):
                writer.produce(source, f"{number}", f"k{each % 5}")
            writer.flush(30)
            if number % 2:
                writer.abort_transaction(30)
            else:
                writer.commit_transaction(30)
                expected += 50
        with from_kafka({source: topic}, max_records=30):
            found = stored.await_count(expected)
    assert {message.text for message in found} == {"0", "2"}


def with_a_large_one(kafka: str, size: int) -> str:
    """A topic of Kafka with three records, of which the second is large."""
    source = new_topic(kafka, 1, max_message_bytes=50_000_000)
    writer = KafkaProducer({"bootstrap.servers": kafka, "message.max.bytes": 50_000_000})
    for body in (b"before", b"x" * size, b"behind"):
        writer.produce(source, body, b"k")
    writer.flush(60)
    return source


def test_a_record_that_halfmq_refuses(kafka: str, topic: str, stored: Stored, from_kafka: Callable[..., Any]) -> None:
    source = with_a_large_one(kafka, 5_000_000)
    with from_kafka({source: topic}) as running:
        failure = running.failed()
    assert isinstance(failure, RecordRefused)
    assert failure.position == f"{source}/0/1"
    assert "max_body_bytes" in str(failure)
    assert f"--skip-record {source}/0/1" in str(failure)
    assert [message.text for message in stored.await_count(1)] == ["before"]
    with from_kafka({source: topic}, skip_records=frozenset({f"{source}/0/1"})):
        assert [message.text for message in stored.await_count(2)] == ["before", "behind"]


def test_a_record_that_no_request_can_hold(
    kafka: str, topic: str, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = with_a_large_one(kafka, 40_000_000)
    with from_kafka({source: topic}) as running:
        failure = running.failed()
    assert isinstance(failure, RecordRefused)
    assert f"--skip-record {source}/0/1" in str(failure)
    with from_kafka({source: topic}, skip_records=frozenset({f"{source}/0/1"})):
        assert [message.text for message in stored.await_count(2)] == ["before", "behind"]


def published(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[message_pb2.Message]]:
    """What is published at once, each time."""
    batches: list[Sequence[message_pb2.Message]] = []
    publish = PartitionSink.publish

    def noted(self: PartitionSink, messages: Sequence[message_pb2.Message], position: int) -> None:
        batches.append(messages)
        publish(self, messages, position)

    monkeypatch.setattr(PartitionSink, "publish", noted)
    return batches


def test_headers_and_keys_count_as_well_as_values(
    kafka: str,
    topic: str,
    records: KafkaProducer,
    stored: Stored,
    from_kafka: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = new_topic(kafka, 1)
    for number in range(4000):
        records.produce(source, b"v", f"{number}" * 50, headers=[("p", b"x" * 15_000)])
        records.poll(0)
    records.flush(60)
    batches = published(monkeypatch)
    with from_kafka({source: topic}):
        stored.await_count(4000)
    assert 1 < max(len(batch) for batch in batches) < 1200


def test_what_comes_behind_a_record_that_is_refused_is_not_read(
    kafka: str,
    topic: str,
    records: KafkaProducer,
    stored: Stored,
    from_kafka: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = new_topic(kafka, 1)
    for number in range(200):
        records.produce(source, f"{number}", b"k", headers=[("p", b"x" * (17_000 if number else 1))])
    records.flush(60)
    batches = published(monkeypatch)
    with from_kafka({source: topic}) as running:
        assert running.failed().position == f"{source}/0/1"
    assert max(len(batch) for batch in batches) < 40
    assert [message.text for message in stored.await_count(1)] == ["0"]


@pytest.mark.parametrize("allowed", [False, True])
def test_records_that_kafka_deleted(
    kafka: str, topic: str, records: KafkaProducer, stored: Stored, from_kafka: Callable[..., Any], allowed: bool
) -> None:
    source = new_topic(kafka, 1)
    for number in range(10):
        records.produce(source, f"{number}", b"k")
    records.flush(30)
    with from_kafka({source: topic}):
        stored.await_count(10)
    for number in range(10, 20):
        records.produce(source, f"{number}", b"k")
    records.flush(30)
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(source, 0, 14)]).values():
        future.result()
    if allowed:
        with from_kafka({source: topic}, skip_missing=True):
            assert stored.await_count(16)[-1].text == "19"
        return
    with from_kafka({source: topic}) as running:
        failure = running.failed()
    assert isinstance(failure, MessagesMissing)
    assert (failure.count, failure.position) == (4, f"{source}/0/10")
    assert stored.count() == 10


def test_a_topic_of_kafka_that_was_made_anew(
    kafka: str, topic: str, records: KafkaProducer, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 1)
    records.produce(source, b"old", b"k")
    records.flush(30)
    with from_kafka({source: topic}):
        stored.await_count(1)
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_topics([source], operation_timeout=30).values():
        future.result()
    wait_until(lambda: source not in admin.list_topics(timeout=10).topics)
    new_topic(kafka, 1, source)
    records.produce(source, b"new", b"k")
    records.flush(30)
    with from_kafka({source: topic}) as running:
        failure = running.failed()
    assert failure.reason == "SINK_TAKEN"
    with from_kafka({source: topic}, f"{topic}-2"):
        assert [message.text for message in stored.await_count(2)] == ["old", "new"]


def test_latest_keeps_its_place(
    kafka: str, topic: str, records: KafkaProducer, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 1)
    records.produce(source, b"before", b"k")
    records.flush(30)
    runner, link = BackgroundRunner("test"), BrokerLink(stored._reader._core._link.endpoints[0])
    sink = PartitionSink(link, runner, topic, source, _identity(kafka, source), 0)
    with from_kafka({source: topic}, start="latest"):
        wait_until(lambda: sink.position() == 1)
    runner.run(link.close())
    runner.close()
    records.produce(source, b"while nobody carried", b"k")
    records.flush(30)
    with from_kafka({source: topic}, start="latest"):
        assert [message.text for message in stored.await_count(1)] == ["while nobody carried"]


def test_partitions_that_come_later_are_carried_from_their_first_record(
    kafka: str, topic: str, records: KafkaProducer, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 2)
    for partition in (0, 1):
        records.produce(source, b"before", b"k", partition)
    records.flush(30)
    runner, link = BackgroundRunner("test"), BrokerLink(stored._reader._core._link.endpoints[0])
    sinks = [PartitionSink(link, runner, topic, source, _identity(kafka, source), number) for number in (0, 1)]
    with from_kafka({source: topic}, start="latest"):
        wait_until(lambda: [sink.position() for sink in sinks] == [1, 1])
    runner.run(link.close())
    runner.close()
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_partitions([NewPartitions(source, 3)]).values():
        future.result()
    wait_until(lambda: len(admin.list_topics(source, timeout=10).topics[source].partitions) == 3)
    later = KafkaProducer({"bootstrap.servers": kafka})
    later.produce(source, b"before anybody knew of it", b"k", 2)
    later.flush(30)
    with from_kafka({source: topic}, start="latest"):
        assert [message.text for message in stored.await_count(1)] == ["before anybody knew of it"]


def test_a_batch_that_cannot_be_read_is_named(
    broker: BrokerProcess, topic: str, stored: Stored, tmp_path: Path
) -> None:
    folder = tmp_path / "kafka"
    kafka = PrivateKafka(folder)
    with kafka:
        source = new_topic(kafka.url, 1)
        made = KafkaProducer({"bootstrap.servers": kafka.url, "compression.type": "gzip", "linger.ms": 50})
        for batch in range(3):
            for number in range(10):
                made.produce(source, f"{batch} {number} {secrets.token_hex(50)}".encode())
            made.flush(30)
        kafka.stop()
        (segment,) = (folder / "data" / f"{source}-0").glob("*.log")
        content = bytearray(segment.read_bytes())
        # Behind the first batch, and the head of the second.
        first = 12 + int.from_bytes(content[8:12], "big")
        for place in range(first + 61 + 30, first + 61 + 60):
            content[place] ^= 0xFF
        segment.write_bytes(content)
        kafka.start()
        running = Running(KafkaSource(broker.endpoint, kafka.url, {source: topic}, name=topic))
        failure = running.failed()
        running.stop()
    assert isinstance(failure, BridgeError)
    assert f"{source}/0/10" in str(failure)
    assert "Nothing was skipped" in str(failure)
    assert [message.text[0] for message in stored.await_count(10)] == ["0"] * 10


def _identity(kafka: str, topic: str) -> str:
    return Cluster({"bootstrap.servers": kafka}, None).topics([topic])[topic].topic_id


def test_of_two_that_carry_one_partition_the_late_one_is_refused(
    broker: BrokerProcess, topic: str, stored: Stored
) -> None:
    runner, link = BackgroundRunner("test"), BrokerLink(broker.endpoint)

    def some(*numbers: int) -> list[message_pb2.Message]:
        return [message_pb2.Message(topic=topic, body=f"{n}".encode(), message_group="g") for n in numbers]

    frozen, other = (PartitionSink(link, runner, topic, "source", "identity", 0) for _ in range(2))
    for sink in (frozen, other):
        assert sink.position() is None
    frozen.publish([], 0)
    with pytest.raises(Superseded):
        other.publish([], 5)  # It began elsewhere.
    assert other.position() == 0
    other.publish(some(0, 1, 2), 3)
    # The frozen one has read more than the other did: its larger epoch would release 0, 1 and 2 again.
    with pytest.raises(Superseded):
        frozen.publish(some(0, 1, 2, 3, 4), 5)
    assert frozen.position() == 3
    frozen.publish(some(3, 4), 5)
    with pytest.raises(Superseded):
        other.publish(some(3), 4)
    assert [message.text for message in stored.await_count(5)] == ["0", "1", "2", "3", "4"]
    runner.run(link.close())
    runner.close()


def test_a_topic_that_is_not_there(name: str, kafka: str, topic: str, from_kafka: Callable[..., Any]) -> None:
    with from_kafka({"nothing": topic}) as running:
        assert "Kafka has no topic 'nothing'" in str(running.failed())
    with from_kafka({new_topic(kafka): "nothing"}) as running:
        assert running.failed().reason == "TOPIC_NOT_FOUND"


def test_kafka_that_does_not_answer_while_positions_are_read_is_told_and_waited_for(
    kafka: str,
    topic: str,
    records: KafkaProducer,
    stored: Stored,
    from_kafka: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing(monkeypatch, KafkaError._TIMED_OUT, times=2)
    source = new_topic(kafka, 1)
    records.produce(source, b"x", b"k")
    records.flush(30)
    with from_kafka({source: topic}):
        stored.await_count(1)
    said = [record.getMessage() for record in caplog.records if record.name == "halfmq.connect"]
    assert [text.partition(";")[0].partition(",")[0] for text in said] == [
        "Kafka does not answer",
        "Kafka answers again",
    ]


def test_kafka_that_refuses_while_positions_are_read_stops_it(
    kafka: str, topic: str, from_kafka: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED, times=1000)
    with from_kafka({new_topic(kafka, 1): topic}) as running:
        failure = running.failed()
    assert isinstance(failure, BridgeError)
    assert "Kafka refuses" in str(failure)


def failing(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
    """Has Kafka answer with an error, so many times, when it is asked for the ends of partitions."""
    ends, left = Cluster.ends, iter(range(times))

    def answered(self: Cluster, places: Any) -> Any:
        if next(left, None) is not None:
            raise KafkaException(KafkaError(code))
        return ends(self, places)

    monkeypatch.setattr(Cluster, "ends", answered)


def test_a_record_that_halfmq_refuses_while_another_replica_carries_what_is_before_it(
    kafka: str,
    topic: str,
    records: KafkaProducer,
    stored: Stored,
    from_kafka: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = new_topic(kafka, 1)
    for headers in ([], [("p", b"x" * 20_000)]):
        records.produce(source, b"v", b"k", headers=headers)
    records.flush(30)
    publish, superseded = PartitionSink.publish, iter([Superseded()])

    def published(self: PartitionSink, messages: Sequence[message_pb2.Message], position: int) -> None:
        if len(messages) == 1 and (error := next(superseded, None)) is not None:
            raise error
        publish(self, messages, position)

    monkeypatch.setattr(PartitionSink, "publish", published)
    with from_kafka({source: topic}) as running:
        failure = running.failed()
    assert isinstance(failure, RecordRefused)
    assert failure.position == f"{source}/0/1"
    assert len(stored.await_count(1)) == 1


def test_a_topic_of_kafka_that_is_made_anew_while_it_is_carried(
    kafka: str, topic: str, records: KafkaProducer, stored: Stored, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 1)
    for _ in range(3):
        records.produce(source, b"old", b"k")
    records.flush(30)
    with from_kafka({source: topic}) as running:
        stored.await_count(3)
        admin = AdminClient({"bootstrap.servers": kafka})
        for future in admin.delete_topics([source], operation_timeout=30).values():
            future.result()
        wait_until(lambda: source not in admin.list_topics(timeout=10).topics)
        new_topic(kafka, 1, source)
        writer = KafkaProducer({"bootstrap.servers": kafka})
        for _ in range(10):
            writer.produce(source, b"new", b"k")
        writer.flush(30)
        # The records below the position would be left out without a word.
        assert isinstance(running.failed(), TopicReplaced)
    assert stored.count() == 3


def text_of(name: str, bridge: KafkaSource) -> str:
    """What it tells at this moment."""
    registry = CollectorRegistry()
    for family in of_bridge(name, "from_kafka", bridge)():
        registry.register(Given(family))
    return generate_latest(registry).decode()


class Given(Collector):
    """One metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def left(name: str, bridge: KafkaSource) -> float:
    return value(samples_of(text_of(name, bridge)), "halfmq_bridge_lag_messages", bridge=name, direction="from_kafka")


def test_a_transaction_that_stays_open_holds_up_what_is_behind_it(
    kafka: str,
    topic: str,
    name: str,
    records: KafkaProducer,
    stored: Stored,
    from_kafka: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source = new_topic(kafka, 1)
    opened = KafkaProducer({"bootstrap.servers": kafka, "transactional.id": f"{source}-1"})
    opened.init_transactions(30)
    opened.begin_transaction()
    opened.produce(source, b"first")
    opened.commit_transaction(30)
    with from_kafka({source: topic}) as running:
        stored.await_count(1)
        # The mark at the end of the transaction is no record that is left.
        wait_until(lambda: running.bridge.lag() == 0)
        before = Scrape(text_of(name, running.bridge))
        opened.begin_transaction()
        opened.produce(source, b"never committed")
        opened.flush(30)
        for _ in range(150):
            records.produce(source, b"waits")
        records.flush(30)
        wait_until(lambda: left(name, running.bridge) == 151)
        then = Scrape(text_of(name, running.bridge))
        assert value(samples_of(then.text), "halfmq_bridge_messages_total") == 1
        opened.abort_transaction(30)
        stored.await_count(151)
        wait_until(lambda: left(name, running.bridge) == 0)
        assert value(samples_of(text_of(name, running.bridge)), "halfmq_bridge_messages_total") == 151
    fires(tmp_path, "HalfmqBridgeStuck", before, then, bridge=name, direction="from_kafka")
