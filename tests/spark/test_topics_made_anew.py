"""A topic that was deleted and created again: its messages are others, at the same offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from producer_sdk import Admin
from spark.conftest import numbers
from support.spark import on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from spark.conftest import Queries
    from support.brokers import BrokerProcess

pytestmark = on("mysql")


@pytest.fixture
def single(topic: str, admin: Admin) -> str:
    """A topic with one queue."""
    admin.delete_topic(topic)
    admin.create_topic(topic, queues=1)
    return topic


@pytest.fixture
def make_anew(single: str, admin: Admin, send: Callable[..., None]) -> Callable[..., None]:
    """Deletes the topic, makes it again, and sends these numbers to it."""

    def anew(values: range) -> None:
        admin.delete_topic(single)
        admin.create_topic(single, queues=1)
        send(single, values)

    return anew


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("count", [20, 50])
def test_it_has_as_many_messages_as_were_read_or_more(
    single: str,
    make_anew: Callable[..., None],
    send: Callable[..., None],
    queries: Queries,
    allowed: bool,
    count: int,
) -> None:
    send(single, range(20))
    options = {"topic": single, "startingOffsets": "earliest"}
    queries.run(**options)
    make_anew(range(100, 100 + count))
    if allowed:
        queries.run(**options, failOnDataLoss="false")
        assert queries.values() == [*range(20), *range(100, 100 + count)]
        send(single, range(200, 210))
        queries.run(**options)
        assert queries.values() == [*range(20), *range(100, 100 + count), *range(200, 210)]
    else:
        with pytest.raises(PySparkException, match=r"was deleted and created again.*failOnDataLoss"):
            queries.run(**options)
        assert queries.values() == list(range(20))


@pytest.mark.parametrize("allowed", [False, True])
def test_between_the_plan_and_the_tasks(
    spark: SparkSession,
    broker: BrokerProcess,
    single: str,
    make_anew: Callable[..., None],
    send: Callable[..., None],
    allowed: bool,
) -> None:
    send(single, range(20))
    options = {"endpoint": broker.endpoint, "topic": single, "failOnDataLoss": str(not allowed).lower()}
    planned = spark.read.format("halfmq").options(**options).load().selectExpr("CAST(value AS string) AS value").rdd
    assert planned.getNumPartitions() == 1
    make_anew(range(100, 150))
    if allowed:
        assert planned.collect() == []
    else:
        with pytest.raises(Exception, match="was deleted and created again"):
            planned.collect()


@pytest.mark.parametrize("allowed", [False, True])
def test_while_a_micro_batch_is_under_way(
    single: str, make_anew: Callable[..., None], send: Callable[..., None], queries: Queries, allowed: bool
) -> None:
    send(single, range(20))
    read: list[list[int]] = []

    def write(frame: DataFrame, _: int) -> None:
        if not read:
            make_anew(range(100, 150))
        read.append(numbers(frame))

    options = {"topic": single, "startingOffsets": "earliest", "failOnDataLoss": str(not allowed).lower()}
    if allowed:
        queries.run(write, **options)
        queries.run(write, **options)
        assert [each for each in read if each] == [list(range(100, 150))]
    else:
        with pytest.raises(PySparkException, match="was deleted and created again"):
            queries.run(write, **options)
        assert read == []


def test_a_checkpoint_of_before_goes_on_and_learns(
    single: str, make_anew: Callable[..., None], send: Callable[..., None], queries: Queries
) -> None:
    """Checkpoints did not tell which topic their offsets are of."""
    send(single, range(20))
    options = {"topic": single, "startingOffsets": "earliest"}
    queries.run(**options)
    for noted in (Path(queries.checkpoint) / "offsets").iterdir():
        if not noted.name.startswith("."):
            *head, offsets = noted.read_text().splitlines()
            known = {name: value for name, value in json.loads(offsets).items() if not name.startswith("@")}
            assert known == {single: {"0": 20}}
            noted.write_text("\n".join([*head, json.dumps(known)]))
            noted.with_name(f".{noted.name}.crc").unlink(missing_ok=True)
    send(single, range(20, 40))
    queries.run(**options)
    assert queries.values() == list(range(40))
    make_anew(range(100, 150))
    with pytest.raises(PySparkException, match="was deleted and created again"):
        queries.run(**options)


def test_offsets_that_a_user_gives_name_their_topic(
    spark: SparkSession,
    broker: BrokerProcess,
    single: str,
    make_anew: Callable[..., None],
    send: Callable[..., None],
    queries: Queries,
) -> None:
    """What a query's progress tells may be given to another one."""
    send(single, range(20))
    (progress,) = queries.run(topic=single, startingOffsets="earliest")
    ended = progress["sources"][0]["endOffset"]
    send(single, range(20, 30))
    options = {"endpoint": broker.endpoint, "topic": single, "startingOffsets": ended}
    assert numbers(spark.read.format("halfmq").options(**options).load()) == list(range(20, 30))
    make_anew(range(100, 150))
    with pytest.raises(Exception, match="startingOffsets are of another topic"):
        spark.read.format("halfmq").options(**options).load().collect()
