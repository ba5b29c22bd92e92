"""Options of the Spark source: what is taken, and what is refused before anything is connected."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from consumer_sdk import ConfigurationError, SqlFilter, TagFilter
from consumer_sdk.spark.options import ReadOptions

if TYPE_CHECKING:
    from pathlib import Path

LEAST = {"endpoint": "localhost:8085", "topic": "orders"}


def test_defaults() -> None:
    options = ReadOptions.read(LEAST)
    assert (options.topics, options.start, options.end) == (("orders",), None, "latest")
    assert (options.max_offsets_per_trigger, options.min_partitions, options.fail_on_data_loss) == (50_000, None, True)
    assert options.connection.connection().tls is None


def test_all_of_them_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"-----BEGIN pem")
    options = ReadOptions.read(
        {
            "ENDPOINT": "a:1, b:2",
            "topics": "orders, returns,orders",
            "startingoffsets": '{"orders": {"0": 17, "1": -2}}',
            "endingTimestamp": "2026-01-31T12:00:00+01:00",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "90S",
            "maxOffsetsPerTrigger": "7",
            "maxBytesPerTrigger": "64M",
            "minPartitions": "3",
            "maxRecordsPerPartition": "11",
            "failOnDataLoss": "False",
            "group": "readers",
            "tagFilter": "a || b",
            "messagesPerRequest": "9",
            "tlsRootCertificates": str(tmp_path / "ca.pem"),
        }
    )
    assert options.topics == ("orders", "returns")
    assert options.start == {"orders": {0: 17, 1: -2}}
    assert options.end == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert (options.max_offsets_per_trigger, options.min_partitions, options.messages_per_request) == (7, 3, 9)
    assert options.max_bytes_per_trigger == 64 << 20
    assert (options.min_offsets_per_trigger, options.max_trigger_delay) == (5, 90.0)
    assert options.max_records_per_partition == 11
    assert (options.fail_on_data_loss, options.group, options.wanted) == (False, "readers", TagFilter("a || b"))
    tls = options.connection.connection().tls
    assert tls is not None
    assert tls.root_certificates == b"-----BEGIN pem"


def test_queues_and_a_time_for_each() -> None:
    options = ReadOptions.read(
        {
            "endpoint": "localhost:8085",
            "assign": '{"orders": [1, 0, 1], "returns": [3]}',
            "startingOffsetsByTimestamp": '{"orders": {"0": 1800000000123, "1": "2026-01-31T12:00:00+01:00"}}',
        }
    )
    assert (options.topics, options.assigned) == (("orders", "returns"), {"orders": {0, 1}, "returns": {3}})
    times = {0: datetime.fromtimestamp(1800000000.123, UTC), 1: datetime(2026, 1, 31, 11, tzinfo=UTC)}
    assert options.start == {"orders": times}


def test_a_large_least_number_of_messages_is_the_greatest_one_too() -> None:
    options = ReadOptions.read({**LEAST, "minOffsetsPerTrigger": "70000"})
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (70_000, 70_000)
    assert options.max_trigger_delay == 15 * 60


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("250ms", 0.25), ("2 m", 120), ("1h", 3600), ("1d", 86_400)])
def test_times_with_their_units(text: str, seconds: float) -> None:
    options = ReadOptions.read({**LEAST, "minOffsetsPerTrigger": "2", "maxTriggerDelay": text})
    assert options.max_trigger_delay == seconds


def test_times_and_conditions() -> None:
    options = ReadOptions.read({**LEAST, "startingTimestamp": "1800000000123", "sqlFilter": "a = 1"})
    assert options.start == datetime.fromtimestamp(1800000000.123, UTC)
    assert options.wanted == SqlFilter("a = 1")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"endpont": "x"}, "endpont", "did you mean 'endpoint'?"),
        ({"colour": "red"}, "colour", "the options are endpoint, tls"),
        ({"endpoint": ""}, "endpoint", "endpoint is missing"),
        ({"endpoint": "nowhere"}, "endpoint", "nowhere"),
        ({"topics": "b"}, "topic", "topic and topics is given"),
        ({"topic": ""}, "topic", "none of them is given"),
        ({"topic": "a,b"}, "topic", "use topics"),
        ({"topic": "", "topics": "a,,b"}, "topics", "an empty name"),
        ({"topic": "", "topicPattern": "(a"}, "topicPattern", "is no regular expression"),
        ({"startingOffsets": "soon"}, "startingOffsets", "write earliest, latest"),
        ({"startingOffsets": '{"orders": {"x": 1}}'}, "startingOffsets", "cannot be read"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "startingOffsets", "'other', which is not among"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets", "write offsets from 0 on"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp", "both given"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "nothing would be read"),
        (
            {"startingOffsetsByTimestamp": "{}", "startingOffsets": "latest"},
            "startingOffsetsByTimestamp",
            "startingOffsets and startingOffsetsByTimestamp are both given",
        ),
        ({"startingOffsetsByTimestamp": "1800000000123"}, "startingOffsetsByTimestamp", "with milliseconds"),
        (
            {"endingOffsetsByTimestamp": '{"orders": {"0": "noon"}}'},
            "endingOffsetsByTimestamp",
            "'noon' is no time",
        ),
        ({"endingOffsetsByTimestamp": '{"x": {"0": 1}}'}, "endingOffsetsByTimestamp", "'x', which is not among"),
        ({"startingOffsetsByTimestamp": '{"orders": {"-1": 1}}'}, "startingOffsetsByTimestamp", "from 0 on"),
        ({"assign": '{"orders": [0]}'}, "topic", "topic and assign is given"),
        ({"topic": "", "assign": "orders"}, "assign", "must name queues of topics"),
        ({"topic": "", "assign": "{}"}, "assign", "must name queues of topics"),
        ({"topic": "", "assign": '{"orders": []}'}, "assign", "must name queues of topics"),
        ({"topic": "", "assign": '{"orders": "01"}'}, "assign", "must name queues of topics"),
        ({"topic": "", "assign": '{"orders": [-1]}'}, "assign", "must name queues of topics"),
        ({"topic": "", "assign": '{"orders": [true]}'}, "assign", "must name queues of topics"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger", "from 1 to"),
        (
            {"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "7"},
            "minOffsetsPerTrigger",
            "8 is above maxOffsetsPerTrigger 7",
        ),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay", "without a minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "8", "maxTriggerDelay": "9"}, "maxTriggerDelay", "a time with its unit"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition", "from 1 to"),
        ({"startingTimestamp": "noon"}, "startingTimestamp", "is no time"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "startingTimestamp", "has no time zone"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "a number from 1"),
        ({"maxBytesPerTrigger": "0m"}, "maxBytesPerTrigger", "a number of bytes, such as 67108864 or 64m"),
        ({"maxBytesPerTrigger": "1.5g"}, "maxBytesPerTrigger", "a number of bytes"),
        ({"messagesPerRequest": "100001"}, "messagesPerRequest", "to 100000"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss", "true or false"),
        ({"tagFilter": "a", "sqlFilter": "b = 1"}, "sqlFilter", "both given"),
        ({"tlsRootCertificates": "/no/such.pem"}, "tlsRootCertificates", "cannot be read: No such file"),
        ({"tls": "false", "tlsServerName": "x"}, "tls", "tlsServerName is given, but tls is false"),
    ],
)
def test_what_cannot_be(changes: dict[str, str], field: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ReadOptions.read(LEAST | changes)
    assert words in str(refused.value)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
