"""Settings of the bridge that cannot work, and a Kafka that does not take a record: without Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfmq_connect.kafka import BridgeSettings, KafkaTarget, SourceSettings
from halfmq_connect.kafka import registry as registry_module
from halfmq_connect.kafka.cluster import unavailable
from halfmq_connect.kafka.configuration import Configuration
from halfmq_connect.kafka.errors import ConfigurationError
from halfmq_connect.kafka.registry import register

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("kind", "field", "value", "rule"),
    [
        (BridgeSettings, "instance", 1, "letters, digits"),
        (BridgeSettings, "too_large_to", 5, "name of a topic"),
        (BridgeSettings, "too_large_to", "", "name of a topic"),
        (BridgeSettings, "group", 5, "name of a consumer group"),
        (BridgeSettings, "start", {"a": 1}, "earliest or latest"),
        (SourceSettings, "instance", 1, "letters, digits"),
        (SourceSettings, "skip_records", 5, "topic/partition/offset"),
        (SourceSettings, "skip_records", "orders/0/1", "list of topic/partition/offset"),
        (SourceSettings, "skip_records", [5], "topic/partition/offset"),
        (SourceSettings, "skip_records", [["orders/0/1"]], "topic/partition/offset"),
        (SourceSettings, "key_as", ["key"], "message_group, key or none"),
    ],
)
def test_settings_of_a_wrong_kind(kind: type, field: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule) as refused:
        kind(**{field: value})
    assert refused.value.field == field


def test_records_to_skip_may_be_a_list_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text('skip_records = ["orders/0/1"]')
    read = Configuration.read(file, SourceSettings)
    assert SourceSettings(**read.settings).skip_records == {"orders/0/1"}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: KafkaTarget({"bogus": 1}), "bootstrap.servers"),
        (lambda: KafkaTarget({"bootstrap.servers": "k:1", "bogus": 1}), "kafka"),
        (lambda: KafkaTarget({"bootstrap.servers": "k:1", "linger.ms": [1]}), "kafka"),
        (lambda: KafkaTarget(5), "kafka"),
        (lambda: KafkaTarget("k:1", 5), "topics"),
    ],
)
def test_a_target_that_cannot_work(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert refused.value.field == field


class _Known:
    """A cluster where nothing is registered."""

    def create(self, *_: object, **__: object) -> None: ...

    def flush(self, _: object) -> None: ...

    def content(self, *_: object) -> list[tuple[bytes, bytes]]:
        return []


@pytest.mark.parametrize(
    ("outcomes", "again"),
    [([], True), ([KafkaError._MSG_TIMED_OUT], True), ([KafkaError.TOPIC_AUTHORIZATION_FAILED], False)],
)
def test_a_registry_that_takes_no_record(monkeypatch: pytest.MonkeyPatch, outcomes: list[int], again: bool) -> None:
    class Producer:
        def __init__(self, settings: Any) -> None: ...

        def produce(self, *_: object, on_delivery: Callable[[KafkaError, None], None]) -> None:
            for code in outcomes:
                on_delivery(KafkaError(code), None)

        def flush(self, seconds: float) -> None: ...

    monkeypatch.setattr(registry_module, "Producer", Producer)
    with pytest.raises(KafkaException) as raised:
        register(_Known(), {}, "to-kafka/shop", [("halfmq:a", "kafka:b")])
    assert unavailable(raised.value) is again
