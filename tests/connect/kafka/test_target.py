"""KafkaTarget: a result for each message, for relays."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from halfmq_connect.kafka import KafkaPosition, KafkaTarget, RecordRefused
from halfmq_connect.kafka.errors import BridgeError, ConfigurationError
from producer_sdk import Message
from support.kafka import committed, free_port, new_topic, wait_until


def test_each_message_has_a_result(kafka: str) -> None:
    topic, small = new_topic(kafka, 1), new_topic(kafka, 1, max_message_bytes=1000)
    messages = [
        Message("orders", "one", message_group="g", tag="t", keys=["k"], properties={"p": "q"}, message_id="id-1"),
        Message(small, "x" * 2000),
        Message("a/b", "no such name"),
        Message("orders", "two", keys="k"),
    ]
    with KafkaTarget(kafka, {"orders": topic}) as target:
        first, large, unnamed, second = target.send(messages)
        assert target.send([]) == []
    assert (first, second) == (KafkaPosition(topic, 0, 0), KafkaPosition(topic, 0, 1))
    assert isinstance(large, RecordRefused)
    assert isinstance(unnamed, RecordRefused)
    records = committed(kafka, topic, 2)
    assert [(record.key(), record.value()) for record in records] == [(b"g", b"one"), (b"k", b"two")]
    assert dict(records[0].headers()) == {
        "p": b"q",
        "halfmq.tag": b"t",
        "halfmq.message_group": b"g",
        "halfmq.message_id": b"id-1",
        "halfmq.key": b"k",
    }


def test_kafka_that_is_away_is_told_in_time() -> None:
    start = time.monotonic()
    with KafkaTarget(f"127.0.0.1:{free_port()}", timeout=1) as target:
        (result,) = target.send([Message("orders", "x")])
    assert isinstance(result, Exception)
    assert result.reason == "KAFKA_UNAVAILABLE"
    assert time.monotonic() - start < 30  # Only a hang takes longer.


def ends(target: KafkaTarget) -> bool:
    """Whether close() returns, long before the target's time-out."""
    closing = threading.Thread(target=target.close, daemon=True)
    closing.start()
    closing.join(60)
    return not closing.is_alive()


def test_it_ends_where_kafka_never_answered() -> None:
    """Somebody listens there, and says nothing: as where a firewall drops what is sent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = KafkaTarget(f"127.0.0.1:{silent.getsockname()[1]}", timeout=600)
        found: list[object] = []
        sending = threading.Thread(target=lambda: found.extend(target.send([Message("orders", "x")])), daemon=True)
        sending.start()
        wait_until(lambda: len(target._producer))
        assert ends(target)
        sending.join(60)
        assert [result.reason for result in found if isinstance(result, BridgeError)] == ["KAFKA_UNAVAILABLE"]


def test_it_ends_where_what_the_client_knows_was_not_told() -> None:
    """Its client hears of connections that fail while nobody polls, as when a call was cut off."""
    target = KafkaTarget(f"127.0.0.1:{free_port()}", timeout=600)
    target._produce(Message("orders", "x"), None)
    assert ends(target)


def test_what_the_client_refuses_itself_tells_nothing_of_kafka() -> None:
    with KafkaTarget(f"127.0.0.1:{free_port()}", timeout=1) as target:
        target.send([Message("orders", "x")])
        assert target.is_failing
        (large,) = target.send([Message("orders", "x" * 2_000_000)])
        assert isinstance(large, RecordRefused)
        assert target.is_failing


def test_what_kafka_refuses_tells_that_it_answers(kafka: str) -> None:
    small = new_topic(kafka, 1, max_message_bytes=1000)
    with KafkaTarget(kafka) as target:
        target.is_failing = True
        (large,) = target.send([Message(small, "x" * 2000)])
        assert isinstance(large, RecordRefused)
        assert not target.is_failing


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigurationError):
        KafkaTarget("")
    with pytest.raises(ConfigurationError):
        KafkaTarget("k:1", {"orders": "a b"})
    with pytest.raises(ConfigurationError):
        KafkaTarget("k:1", timeout=0)
