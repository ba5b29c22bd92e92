"""The topic of a bridge's positions: without it nobody knows what was carried, so its loss is told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from halfmq_connect.kafka import beginning
from halfmq_connect.kafka.beginning import PositionsTopic
from halfmq_connect.kafka.cluster import Cluster
from halfmq_connect.kafka.errors import BridgeError
from halfmq_connect.kafka.positions import create_positions, positions_topic
from halfmq_connect.kafka.registry import forget, note_positions, noted_positions, register
from support.kafka import committed, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Producer


@pytest.fixture
def client(kafka: str) -> dict[str, Any]:
    """Settings of Kafka's client."""
    return {"bootstrap.servers": kafka}


@pytest.fixture
def cluster(client: dict[str, Any]) -> Cluster:
    """Kafka."""
    return Cluster(client, None)


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka has one server here: it knows at once what is deleted."""
    monkeypatch.setattr(beginning, "_SETTLED", 0.5)


@pytest.fixture
def delete(client: dict[str, Any], cluster: Cluster, name: str) -> Callable[[], None]:
    """Deletes the topic of the positions of the test's bridge."""
    admin, topic = AdminClient(client), positions_topic(name)

    def delete() -> None:
        admin.delete_topics([topic])[topic].result()
        wait_until(lambda: cluster.identity(topic) is None)

    return delete


def refused(failure: object, name: str) -> bool:
    return (
        isinstance(failure, BridgeError)
        and failure.reason == "POSITIONS_MISSING"
        and all(each in str(failure) for each in (f"'halfmq-bridge.{name}'", "was deleted", "--begin-anew"))
    )


def test_a_bridge_whose_positions_were_deleted_is_refused_and_may_begin_anew(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], delete: Callable[[], None]
) -> None:
    producer.send(topic, "1")
    with to_kafka():
        committed(kafka, topic, 1)
    delete()
    for _ in range(2):  # A refusal leaves no traces.
        with to_kafka() as running:
            assert refused(running.failed(), topic)
    assert len(committed(kafka, topic, 1)) == 1
    with to_kafka(begin_anew=True):
        committed(kafka, topic, 2)
    # It has begun: from here on it is as any other.
    producer.send(topic, "2")
    with to_kafka():
        assert sorted(record.value() for record in committed(kafka, topic, 3)) == [b"1", b"1", b"2"]


def test_positions_that_are_deleted_end_a_bridge_that_carries(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], delete: Callable[[], None]
) -> None:
    producer.send(topic, "1")
    with to_kafka() as running:
        committed(kafka, topic, 1)
        delete()
        producer.send(topic, "2")
        assert refused(running.failed(), topic)


def test_positions_that_are_deleted_end_a_bridge_that_has_nothing_to_carry(
    kafka: str,
    topic: str,
    producer: Producer,
    to_kafka: Callable[..., Any],
    delete: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beginning, "_EVERY", 0.1)
    producer.send(topic, "1")
    with to_kafka() as running:
        committed(kafka, topic, 1)
        delete()
        assert refused(running.failed(), topic)


def test_a_topic_that_was_created_anew_is_not_that_of_the_positions(
    kafka: str,
    topic: str,
    producer: Producer,
    to_kafka: Callable[..., Any],
    delete: Callable[[], None],
    cluster: Cluster,
    client: dict[str, Any],
) -> None:
    """As a Kafka does that creates topics by itself (auto.create.topics.enable)."""
    producer.send(topic, "1")
    with to_kafka() as running:
        committed(kafka, topic, 1)
        delete()
        create_positions(cluster, topic, 4)
        producer.send(topic, "2")
        producer.send(topic, "3")
        wait_until(lambda: running.failure or len(committed(kafka, topic, 1)) == 3)
    for anew in (False, True):
        with to_kafka(begin_anew=anew) as running:
            failure = running.failed()
        assert refused(failure, topic)
        assert f"halfmq bridge forget to-kafka/{topic}" in str(failure)
    found = [record.value() for record in committed(kafka, topic, 1)]
    assert len(found) == len(set(found))  # Nothing came a second time.
    forget(cluster, client, f"to-kafka/{topic}")
    assert noted_positions(cluster, topic) is None


def test_a_first_start_that_was_cut_off_goes_on(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], cluster: Cluster, client: dict[str, Any]
) -> None:
    producer.send(topic, "1")
    register(cluster, client, f"to-kafka/{topic}", [("halfmq:x", f"kafka:{topic}")])
    with to_kafka():
        committed(kafka, topic, 1)
    other = f"{topic}-other"
    register(cluster, client, f"to-kafka/{other}", [("halfmq:x", f"kafka:{topic}")])
    create_positions(cluster, other, 4)
    with to_kafka(called=other) as running:
        committed(kafka, topic, 2)
    assert running.failure is None


def test_replicas_that_begin_at_once_all_begin(
    cluster: Cluster, client: dict[str, Any], name: str, delete: Callable[[], None]
) -> None:
    def begin(anew: bool) -> None:
        begun = PositionsTopic(Cluster(client, None), client, name)
        barrier.wait(60)
        try:
            begun.begin(2, anew=anew)
            begun.check()
        except BaseException as error:
            failures.append(error)

    for anew in (False, True):
        failures: list[BaseException] = []
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=begin, args=(anew,)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert failures == []
        assert noted_positions(cluster, name) == cluster.identity(positions_topic(name))
        # Again, as if it had been lost.
        note_positions(cluster, client, name, "another")
        delete()
