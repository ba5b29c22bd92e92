"""Functions for foreachBatch: several topics and a database get each micro-batch once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from consumer_sdk import ConfigurationError
from consumer_sdk.spark import CREATE_BATCH_APPLIED, apply_once, persisted, write_once
from support.spark import arrived, forget_last_commit, on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from producer_sdk import Admin
    from spark.conftest import Queries
    from support.brokers import BrokerProcess

pytestmark = on("mariadb")


class Outputs:
    """Even numbers go to one topic, all go into a table, odd ones to another topic; it may fail between them."""

    def __init__(self, endpoint: str, topic: str, shop: Path) -> None:
        self.endpoint = endpoint
        self.even, self.odd = f"{topic}-even", f"{topic}-odd"
        self.shop = shop
        self.fail_at: tuple[int, int] | None = None
        self.reset = "fail"
        self.calls: list[int] = []
        with closing(sqlite3.connect(shop)) as made, made:
            made.execute(CREATE_BATCH_APPLIED)
            made.execute("CREATE TABLE numbers (number INT)")

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.calls.append(batch)
        number = "int(string(value))"
        with persisted(frame):
            self._write(frame.where(f"{number} % 2 = 0"), batch, self.even)
            self._fail(batch, 1)
            rows = [tuple(row) for row in frame.selectExpr(number).collect()]
            with closing(sqlite3.connect(self.shop)) as shop:
                apply_once(
                    frame,
                    batch,
                    shop,
                    lambda cursor: cursor.executemany("INSERT INTO numbers VALUES (?)", rows),
                    name="numbers",
                    on_checkpoint_reset=self.reset,
                )
            self._fail(batch, 2)
            self._write(frame.where(f"{number} % 2 = 1"), batch, self.odd)

    def _write(self, frame: DataFrame, batch: int, topic: str) -> None:
        rows = frame.select("value")
        write_once(rows, batch, endpoint=self.endpoint, topic=topic, write_id=topic, on_checkpoint_reset=self.reset)

    def _fail(self, batch: int, place: int) -> None:
        if self.fail_at == (batch, place):
            raise RuntimeError(f"failed on purpose at {place}")

    def written(self) -> tuple[Counter[int], Counter[int], Counter[int]]:
        """What the three have."""
        with closing(sqlite3.connect(self.shop)) as shop:
            rows = Counter(row[0] for row in shop.execute("SELECT number FROM numbers"))
        return arrived(self.endpoint, self.even), rows, arrived(self.endpoint, self.odd)


@pytest.fixture
def outputs(broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path) -> Outputs:
    """Two topics and a database."""
    made = Outputs(broker.endpoint, topic, tmp_path / "shop.db")
    admin.create_topic(made.even)
    admin.create_topic(made.odd)
    return made


def all_of(numbers: range, times: int = 1) -> tuple[Counter[int], Counter[int], Counter[int]]:
    even, odd = numbers[::2], numbers[1::2]
    return (
        Counter(dict.fromkeys(even, times)),
        Counter(dict.fromkeys(numbers, times)),
        Counter(dict.fromkeys(odd, times)),
    )


def test_each_output_gets_each_micro_batch_once(
    topic: str, send: Callable[..., None], queries: Queries, outputs: Outputs
) -> None:
    send(topic, range(600))
    options: dict[str, Any] = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 200}
    # Failures between the outputs, first between the first and the second, then behind the second.
    for place, counts in ((1, (True, False, False)), (2, (True, True, False))):
        outputs.fail_at = (1, place)
        with pytest.raises(StreamingQueryException, match=f"on purpose at {place}"):
            queries.run(outputs, **options)
        totals = [found.total() for found in outputs.written()]
        parts = [found.total() for found in all_of(range(600))]
        assert [total > part / 2 for total, part in zip(totals, parts, strict=True)] == list(counts)
    outputs.fail_at = None
    queries.run(outputs, **options)
    assert outputs.calls == [0, 1, 1, 1, 2]
    assert outputs.written() == all_of(range(600))
    # A kill behind all outputs, before Spark noted the end.
    forget_last_commit(queries.checkpoint)
    send(topic, range(600, 700))
    queries.run(outputs, **options)
    assert outputs.calls == [0, 1, 1, 1, 2, 2, 3]
    assert outputs.written() == all_of(range(700))


def test_a_deleted_checkpoint_is_no_silent_loss(
    topic: str, send: Callable[..., None], queries: Queries, outputs: Outputs
) -> None:
    send(topic, range(20))
    options = {"topic": topic, "startingOffsets": "earliest"}
    queries.run(outputs, **options)
    queries.checkpoint = queries.checkpoint.with_name("another")
    with pytest.raises(StreamingQueryException, match="belongs to the query"):
        queries.run(outputs, **options)
    assert outputs.written() == all_of(range(20))
    outputs.reset = "continue"
    queries.run(outputs, **options)
    assert outputs.written() == all_of(range(20), times=2)


def test_outside_of_a_query(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    frame = spark.range(3).selectExpr("string(id) AS value")
    with pytest.raises(ConfigurationError, match="given to foreachBatch, or name a query_id"):
        write_once(frame, 0, endpoint=broker.endpoint, topic=topic, write_id=topic)
    for _ in range(2):
        write_once(frame, 0, endpoint=broker.endpoint, topic=topic, write_id=topic, query_id="nightly")
    assert arrived(broker.endpoint, topic) == Counter(range(3))
