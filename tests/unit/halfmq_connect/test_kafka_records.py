"""Messages as records and back, without Kafka; where queues go; what is on the way from topic to topic."""

from __future__ import annotations

from collections import Counter

import pytest

from halfmq.v1.consumer_pb2 import LogColumns
from halfmq_connect.kafka.errors import ConfigurationError
from halfmq_connect.kafka.outgoing import batch_size, records_of
from halfmq_connect.kafka.positions import Positions, begun, position, shard_of
from halfmq_connect.kafka.registry import _path
from halfmq_connect.outages import Outage


def columns(**values: object) -> LogColumns:
    given = {
        "topic": "orders",
        "queue": 1,
        "count": 3,
        "first_offset": 7,
        "bodies": b"abbccc",
        "body_ends": [1, 3, 6],
        "transaction_ids": bytes(range(48)),
        "born_at": [1_000, 2_000, 3_000],
        "stored_at": [10_999, 20_000, 30_000],
        **values,
    }
    return LogColumns(**given)


def test_columns_without_what_few_messages_have() -> None:
    first, second, third = records_of(columns())
    assert [each.offset for each in (first, second, third)] == [7, 8, 9]
    assert [each.value for each in (first, second, third)] == [b"a", b"bb", b"ccc"]
    assert (first.key, first.timestamp, first.message_id) == (None, 10, "00010203-0405-0607-0809-0a0b0c0d0e0f")
    assert first.headers == [
        ("halfmq.message_id", first.message_id.encode()),
        ("halfmq.position", b"orders/1/7"),
        ("halfmq.born_at", b"1000"),
    ]


def test_columns_with_everything_for_some() -> None:
    records = list(
        records_of(
            columns(
                offsets=[7, 9, 12],
                positions=[0, 4, 0],
                tags=["", "t", ""],
                key_counts=[0, 2, 1],
                keys=["a", "b", "c"],
                property_counts=[1, 0, 1],
                property_names=["p", "r"],
                property_values=["q", "s"],
                message_groups=["", "", "g"],
                priorities=[0, 0, 2],
                deliver_at=[-1, 5, -1],
                dedup_keys=["d", "", ""],
            )
        )
    )
    assert [record.offset for record in records] == [7, 9, 12]
    assert [record.key for record in records] == [None, b"a", b"g"]
    assert records[1].message_id.endswith(".4")
    own = [[pair for pair in record.headers if pair[0] not in _ALWAYS] for record in records]
    assert [sorted(each) for each in own] == [
        [("halfmq.dedup_key", b"d"), ("p", b"q")],
        [("halfmq.deliver_at", b"5"), ("halfmq.key", b"a"), ("halfmq.key", b"b"), ("halfmq.tag", b"t")],
        [("halfmq.key", b"c"), ("halfmq.message_group", b"g"), ("halfmq.priority", b"2"), ("r", b"s")],
    ]


_ALWAYS = {"halfmq.message_id", "halfmq.position", "halfmq.born_at"}


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        # 61 of the batch, 1 of the record's length, 3, and 1 each for the lengths and the number of headers.
        (None, b"", [], 61 + 1 + 3 + 1 + 1 + 1),
        (b"k", b"v", [("h", b"w")], 61 + 1 + 3 + 2 + 2 + 1 + 4),
        # From 64 on a length takes 2 bytes.
        (None, b"v" * 64, [], 61 + 2 + 3 + 1 + 2 + 64 + 1),
    ],
)
def test_the_size_of_a_batch(key: bytes | None, value: bytes, headers: list[tuple[str, bytes]], size: int) -> None:
    assert batch_size(key, value, headers) == size


def test_queues_of_a_topic_go_to_different_shards() -> None:
    for topic in ("orders", "payments"):
        assert set(Counter(shard_of(topic, queue, 4) for queue in range(8)).values()) == {2}


def test_positions_are_what_was_written_last() -> None:
    written = [
        begun("orders", "id-1", 4),
        position("orders", "id-1", 0, 5),
        position("orders", "id-1", 10, 7),
        position("orders", "id-1", 0, 6),
    ]
    found = Positions.read(iter(written), 4)
    assert found.queues == {("orders", 0): ("id-1", 6), ("orders", 10): ("id-1", 7)}
    assert found.topics == {"orders": "id-1"}
    with pytest.raises(ConfigurationError):
        Positions.read(iter(written), 5)


def test_the_way_from_topic_to_topic() -> None:
    known = {"one": [("a", "b"), ("c", "d")], "two": [("b", "c")], "three": [("x", "a")]}
    assert _path("a", "d", known) == ["one", "two", "one"]
    assert _path("d", "a", known) is None
    assert _path("a", "a", known) == []


def test_an_outage_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("Kafka")
    outage.over()
    for _ in range(5):
        outage.note("no answer")
    for _ in range(2):
        outage.over()
    assert [record.getMessage()[:20] for record in caplog.records] == ["Kafka does not answe", "Kafka answers again,"]
