"""Topics of halfmq in Kafka: what arrives, in which order, and that it goes on where it was."""

from __future__ import annotations

import secrets
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from halfmq_connect.cli.metrics import of_bridge
from halfmq_connect.kafka.errors import ConfigurationError
from producer_sdk import Admin, Message, Producer
from support.kafka import committed, new_topic, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def bodies(records: list[Any]) -> list[str]:
    return sorted(record.value().decode() for record in records)


def test_every_field_has_its_place(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], admin: Admin
) -> None:
    place = producer.send(
        topic, b"\x00\xff", tag="paid", keys=["order-7", "customer-1"], properties={"amount": "12"}, dedup_key="d"
    )
    grouped = producer.send(topic, "in a group", message_group="g", keys=["k"])
    with to_kafka():
        records = {record.value(): record for record in committed(kafka, topic, 2)}
    first, second = records[b"\x00\xff"], records[b"in a group"]
    headers = first.headers()
    born_at = int(dict(headers).pop("halfmq.born_at"))
    assert sorted(each for each in headers if each[0] != "halfmq.born_at") == sorted(
        [
            ("amount", b"12"),
            ("halfmq.dedup_key", b"d"),
            ("halfmq.key", b"order-7"),
            ("halfmq.key", b"customer-1"),
            ("halfmq.message_id", place.message_id.encode()),
            ("halfmq.position", f"{topic}/{place.queue}/{place.offset}".encode()),
            ("halfmq.tag", b"paid"),
        ]
    )
    # Kafka's times are milliseconds, those of halfmq microseconds.
    assert first.timestamp()[1] >= born_at // 1000
    assert first.key() == b"order-7"
    assert second.key() == b"g"
    assert dict(second.headers())["halfmq.message_group"] == b"g"
    assert dict(second.headers())["halfmq.message_id"] == grouped.message_id.encode()


def test_a_message_group_keeps_its_order_and_nothing_comes_twice(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    sent = 0
    for _ in range(3):
        with to_kafka(max_records=50) as running:
            for _ in range(4):
                batch = [Message(topic, f"{sent + n}", message_group=f"g{n % 7}") for n in range(100)]
                producer.send_many(batch)
                sent += 100
            committed(kafka, topic, sent)
            wait_until(lambda running=running: running.bridge.carried == 400)
    records = committed(kafka, topic, sent)
    assert sorted(int(record.value()) for record in records) == list(range(sent))
    by_group: defaultdict[bytes, list[int]] = defaultdict(list)
    for record in records:
        by_group[record.key()].append(int(record.value()))
    assert len(by_group) == 7
    assert all(numbers == sorted(numbers) for numbers in by_group.values())


def test_messages_without_a_key_keep_the_order_of_their_queue(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target = new_topic(kafka, 2)
    for number in range(40):
        producer.send(topic, f"{number}")
    with to_kafka({topic: target}):
        records = committed(kafka, target, 40)
    places: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        queue, offset = dict(record.headers())["halfmq.position"].decode().split("/")[1:]
        assert record.partition() == int(queue) % 2
        places[queue].append((record.offset(), int(offset)))
    assert len(places) == 4
    assert all(offsets == sorted(offsets) == sorted(offsets, key=lambda pair: pair[1]) for offsets in places.values())


def test_two_replicas_share_the_work(kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any]) -> None:
    with to_kafka() as one, to_kafka() as other:
        sent = 0
        while not (one.bridge.carried and other.bridge.carried):
            producer.send_many([Message(topic, f"{sent + n}", message_group=f"g{n}") for n in range(50)])
            sent += 50
            committed(kafka, topic, sent)
        wait_until(lambda: one.bridge.carried + other.bridge.carried == sent)
    assert len(committed(kafka, topic, sent)) == sent


def test_half_messages_come_once_they_are_committed(
    kafka: str, topic: str, broker: Any, to_kafka: Callable[..., Any], producer: Producer
) -> None:
    from producer_sdk import TransactionProducer

    with to_kafka(), TransactionProducer(broker.endpoint, "shop") as shop:
        with shop.transaction() as tx:
            tx.send(topic, "first half")
            tx.send(topic, "second half")
        with shop.transaction() as tx:
            tx.send(topic, "never")
            tx.rollback()
        producer.send(topic, "last")
        assert bodies(committed(kafka, topic, 3)) == ["first half", "last", "second half"]


def test_a_topic_that_one_replica_has_before_the_others_do(
    kafka: str, admin: Admin, topic: str, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    target, added, added_target = new_topic(kafka, 1), f"{topic}-added", new_topic(kafka, 1)
    admin.create_topic(added, queues=8)
    both = {topic: target, added: added_target}
    producer.send_many([Message(added, "earlier")] * 8)
    with to_kafka({topic: target}, start="latest") as old:
        producer.send(topic, "first")
        wait_until(lambda: old.bridge.carried == 1 or len(old.bridge._shards) == 4)
        with to_kafka(both, start="latest") as new:
            wait_until(lambda: len(new.bridge._shards) == len(old.bridge._shards) == 2)
            # Some go to queues of shards that the old one has.
            producer.send_many([Message(added, f"{number}", message_group=f"{number}") for number in range(40)])
            wait_until(lambda: new.bridge.carried > 0)
    with to_kafka(both, start="latest"):
        found = [record.value() for record in committed(kafka, added_target, 40)]
    assert sorted(found) == sorted(b"%d" % number for number in range(40))


def test_latest_begins_behind_what_is_there_and_keeps_that_place(
    kafka: str, topic: str, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    producer.send(topic, "before")
    target = new_topic(kafka)
    with to_kafka({topic: target}, start="latest", create_topics=False) as running:
        wait_until(lambda: running.failure or f"{running.bridge._name}" in _begun(kafka, running))
    producer.send(topic, "while nobody carried")
    # Queues that are added later are carried from their first message on.
    admin.update_topic(topic, queues=8)
    for number in range(16):
        producer.send(topic, f"{number}")
    with to_kafka({topic: target}, start="latest"):
        found = bodies(committed(kafka, target, 17))
    assert found == sorted(["while nobody carried", *(f"{number}" for number in range(16))])


def _begun(kafka: str, running: Any) -> list[str]:
    """The bridge's name, if all of its shards have written down where they begin."""
    from confluent_kafka import KafkaException

    from halfmq_connect.kafka.positions import positions_topic

    name = running.bridge._name
    try:
        keys = {record.key() for record in committed(kafka, positions_topic(name), 0)}
    except (KafkaException, KeyError):
        return []
    return [name] if len([key for key in keys if b"/" in key]) == 4 else []


def test_a_group_learns_how_far_it_is(
    kafka: str, topic: str, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    group = f"{topic}-{secrets.token_hex(2)}"
    admin.create_group(group, keep_unread=True)
    producer.send_many([Message(topic, f"{n}") for n in range(30)])
    assert sum(each.lag for each in admin.group_progress(group, topic)) in {0, 30}
    with to_kafka(group=group):
        committed(kafka, topic, 30)
    assert sum(each.committed_offset for each in admin.group_progress(group, topic)) == 30


def test_a_group_learns_it_also_when_nothing_follows(
    topic: str, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    group = f"{topic}-{secrets.token_hex(2)}"
    admin.create_group(group, keep_unread=True)
    with to_kafka(group=group) as running:
        # Retention waits for it from the beginning.
        wait_until(lambda: len(admin.group_progress(group, topic)) == 4)
        for sent in range(1, 21):
            producer.send(topic, "x")
            wait_until(lambda sent=sent: running.bridge.carried == sent)
        wait_until(lambda: sum(each.committed_offset for each in admin.group_progress(group, topic)) == 20)


def test_a_group_that_is_not_there_is_told(topic: str, to_kafka: Callable[..., Any]) -> None:
    with to_kafka(group="nobody") as running:
        failure = running.failed()
    assert isinstance(failure, ConfigurationError)
    assert (failure.field, failure.reason) == ("group", "GROUP_NOT_FOUND")
    assert "--group" in str(failure)


def test_a_group_that_is_deleted_ends_it(
    topic: str, admin: Admin, producer: Producer, to_kafka: Callable[..., Any]
) -> None:
    group = f"{topic}-{secrets.token_hex(2)}"
    admin.create_group(group)
    with to_kafka(group=group) as running:
        wait_until(lambda: admin.group_progress(group, topic))
        admin.delete_group(group)
        producer.send(topic, "x")
        failure = running.failed()
    assert isinstance(failure, ConfigurationError)
    assert failure.field == "group"


def figures(name: str, bridge: Any, direction: str = "to_kafka") -> dict[str, float]:
    """What a bridge tells, by name; of systems the sum."""
    found: defaultdict[str, float] = defaultdict(float)
    for family in of_bridge(name, direction, bridge)():
        for each in family.samples:
            assert each.labels.items() >= {"bridge": name, "direction": direction}.items()
            found[each.name] += each.value
    return found


def test_a_bridge_counts_what_it_carries_and_tells_what_is_left(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], name: str
) -> None:
    # A transaction waits for more before it is committed.
    with to_kafka(linger=5.0) as running:
        producer.send(topic, "first")
        wait_until(lambda: running.bridge.carried == 1)
        assert figures(name, running.bridge)["halfmq_bridge_lag_messages"] == 0
        producer.send_many([Message(topic, "x") for _ in range(10)])
        wait_until(lambda: figures(name, running.bridge)["halfmq_bridge_lag_messages"] == 10)
        assert figures(name, running.bridge)["halfmq_bridge_messages_total"] == 1
        committed(kafka, topic, 11)
        wait_until(lambda: figures(name, running.bridge)["halfmq_bridge_lag_messages"] == 0)
        found = figures(name, running.bridge)
    assert (found["halfmq_bridge_messages_total"], found["halfmq_bridge_system_up"]) == (11, 2)
    assert "halfmq_bridge_lag_messages" not in figures(name, running.bridge), "it has ended"
