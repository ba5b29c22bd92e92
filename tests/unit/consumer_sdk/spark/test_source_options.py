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
            "maxOffsetsPerTrigger": "7",
            "maxBytesPerTrigger": "64M",
            "minPartitions": "3",
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
    assert (options.fail_on_data_loss, options.group, options.wanted) == (False, "readers", TagFilter("a || b"))
    tls = options.connection.connection().tls
    assert tls is not None
    assert tls.root_certificates == b"-----BEGIN pem"


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
