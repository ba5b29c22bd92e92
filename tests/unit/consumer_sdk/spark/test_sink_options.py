"""Options of the Spark sink: what is taken, and what is refused before anything is connected."""

from __future__ import annotations

import pytest

from consumer_sdk import ConfigurationError
from consumer_sdk.spark.options import WriteOptions

LEAST = {"endpoint": "localhost:8085", "topic": "orders"}


def test_a_stream() -> None:
    options = WriteOptions.read({**LEAST, "SINKID": "large", "checkpointLocation": "/c"}, streaming=True)
    assert (options.sink, options.topic, options.take_over) == ("large", "orders", False)
    assert WriteOptions.read({**LEAST, "sinkId": "s", "onCheckpointReset": "Continue"}, streaming=True).take_over


def test_a_batch_without_a_name_is_nobody_elses() -> None:
    one, other = (WriteOptions.read(LEAST, streaming=False) for _ in range(2))
    assert (one.number, one.repeatable) == (0, False)
    assert one.sink == f"batch-{one.query_id}" != other.sink


def test_a_batch_with_a_name_and_a_number() -> None:
    options = WriteOptions.read({**LEAST, "writeid": "load-7"}, streaming=False)
    assert (options.sink, options.query_id, options.number, options.repeatable) == ("batch-load-7", "load-7", 0, True)
    numbered = WriteOptions.read({**LEAST, "writeId": "load-7", "writenumber": "12"}, streaming=False)
    assert (numbered.sink, numbered.query_id, numbered.number) == ("batch-load-7", "load-7", 12)


def test_a_batch_that_a_query_numbers() -> None:
    given = {**LEAST, "writeId": "load-7", "writeNumber": "0", "writeQuery": "q"}
    options = WriteOptions.read(given, streaming=False)
    assert (options.sink, options.query_id, options.take_over) == ("batch-load-7", "q", False)
    assert WriteOptions.read({**given, "onCheckpointReset": "continue"}, streaming=False).take_over


@pytest.mark.parametrize(
    ("changes", "streaming", "field", "words"),
    [
        ({}, True, "sinkId", "sinkId is missing"),
        ({"sinkId": "a b"}, True, "sinkId", "must have 1 to 80 of the characters"),
        ({"sinkId": "s", "onCheckpointReset": "forget"}, True, "onCheckpointReset", "must be fail or continue"),
        ({"sinkId": "s", "writeId": "w"}, True, "writeId", "writeId is for batches"),
        ({"sinkId": "s", "writeNumber": "1"}, True, "writeNumber", "writeNumber is for batches"),
        ({"sinkId": "s"}, False, "sinkId", "sinkId is for streams"),
        ({"sinkId": "s", "writeQuery": "q"}, True, "writeQuery", "writeQuery is for batches"),
        ({"writeNumber": "1"}, False, "writeNumber", "without a writeId"),
        ({"writeId": "w", "writeQuery": "q"}, False, "writeQuery", "without a writeNumber"),
        ({"writeId": "w", "onCheckpointReset": "continue"}, False, "onCheckpointReset", "without a writeQuery"),
        ({"writeId": "w", "writeNumber": "-1"}, False, "writeNumber", "a number from 0 to"),
        ({"writeId": "w", "writeNumber": "one"}, False, "writeNumber", "a number from 0 to"),
        ({"writeId": "w", "writeNumber": str(2**63)}, False, "writeNumber", "a number from 0 to 9223372036854775807"),
    ],
)
def test_what_cannot_be(changes: dict[str, str], streaming: bool, field: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        WriteOptions.read(LEAST | changes, streaming=streaming)
    assert words in str(refused.value)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
