"""Compressed topics are the same tables and streams, and are written like others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk import Compression
from support.spark import on
from support.stored_bodies import packed_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from producer_sdk import Admin
    from spark.conftest import Queries
    from support.brokers import BrokerProcess

pytestmark = on("mariadb")

COUNT = 500


@pytest.mark.parametrize("order", [(Compression.ZSTD, Compression.NONE), (Compression.NONE, Compression.ZSTD)])
def test_they_are_read_and_written(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    read: Callable[..., DataFrame],
    queries: Queries,
    order: tuple[Compression, Compression],
) -> None:
    """One half of the messages is written under each setting."""
    for number, compression in enumerate(order):
        admin.update_topic(topic, compression=compression)
        frame = spark.range(number * COUNT, (number + 1) * COUNT).selectExpr(
            "concat(id, repeat(' and again', CAST(id % 40 AS INT))) AS value"
        )
        frame.write.format("halfmq").options(endpoint=broker.endpoint, topic=topic).mode("append").save()
    packed, count = packed_messages(broker, topic)
    assert count == 2 * COUNT
    assert COUNT // 2 < packed < COUNT, "those that are long, of one half"
    expected = {f"{number}{' and again' * (number % 40)}" for number in range(2 * COUNT)}
    assert {bytes(row.value).decode() for row in read(topic=topic).collect()} == expected
    assert {row.size for row in read(topic=topic).selectExpr("length(value) AS size").collect()} == {
        len(text) for text in expected
    }
    assert read("offset bigint, queue int", topic=topic).count() == 2 * COUNT, "without the bodies"
    seen: list[str] = []
    queries.run(
        lambda batch, _: seen.extend(bytes(row.value).decode() for row in batch.collect()),
        topic=topic,
        startingOffsets="earliest",
    )
    assert (set(seen), len(seen)) == (expected, 2 * COUNT)
