"""KafkaTarget: a result for each message, for relays."""

from __future__ import annotations

import time

import pytest

from halfmq_connect.kafka import KafkaPosition, KafkaTarget, RecordRefused
from halfmq_connect.kafka.errors import ConfigurationError
from producer_sdk import Message
from support.kafka import committed, free_port, new_topic


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


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigurationError):
        KafkaTarget("")
    with pytest.raises(ConfigurationError):
        KafkaTarget("k:1", {"orders": "a b"})
    with pytest.raises(ConfigurationError):
        KafkaTarget("k:1", timeout=0)
