"""The source: topics as tables and as streams, read by real Spark from brokers on every database."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from producer_sdk import Message, Producer
from spark.conftest import numbers
from support.spark import forget, forget_last_commit, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from producer_sdk import Admin
    from spark.conftest import Queries
    from support.brokers import BrokerProcess

pytestmark = on("mariadb")


def test_all_columns(broker: BrokerProcess, topic: str, read: Callable[..., DataFrame]) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    with Producer(broker.endpoint) as producer:
        sent = producer.send(
            topic, b"\x00\xff", tag="paid", keys=["o-1", "o-2"], properties={"a": "1"}, message_group="g"
        )
        producer.send(topic, b"plain")
    frame = read(topic=topic)
    assert frame.dtypes == [
        ("topic", "string"),
        ("queue", "int"),
        ("offset", "bigint"),
        ("key", "string"),
        ("value", "binary"),
        ("tag", "string"),
        ("timestamp", "timestamp"),
        ("properties", "map<string,string>"),
    ]
    plain, full = sorted(frame.collect(), key=lambda row: row.tag or "")
    assert (full.topic, full.key, bytes(full.value), full.tag, full.properties) == (
        topic,
        "o-1",
        b"\x00\xff",
        "paid",
        {"a": "1"},
    )
    assert (full.queue, full.offset) == (sent.queue, sent.offset)
    assert before < full.timestamp.astimezone(UTC) < before + timedelta(minutes=10)
    assert (plain.key, bytes(plain.value), plain.tag, plain.properties) == (None, b"plain", None, {})

    further = "message_id string, keys array<string>, message_group string, priority int, deliver_at timestamp"
    rows = {row.message_id: row for row in read(further, topic=topic).collect()}
    row = rows[sent.message_id]
    assert (row["keys"], row.message_group, row.priority, row.deliver_at) == (["o-1", "o-2"], "g", 0, None)


def test_ranges(topic: str, admin: Admin, send: Callable[..., None], read: Callable[..., DataFrame]) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, queues=1)
    for start in range(0, 200, 50):
        send(topic, range(start, start + 50))
    # The database's clock and this machine's are not the same.
    time.sleep(0.5)
    middle = datetime.now(UTC)
    time.sleep(0.5)
    send(other, range(1000, 1010))
    assert numbers(read(topic=topic)) == list(range(200))
    assert read(topic=topic).rdd.getNumPartitions() == 4
    split = read(topic=topic, minPartitions=10)
    assert split.rdd.getNumPartitions() >= 10
    assert numbers(split) == list(range(200))
    assert numbers(read(topics=f"{topic}, {other}")) == [*range(200), *range(1000, 1010)]
    assert numbers(read(topicPattern=f"{topic}-.*")) == list(range(1000, 1010))
    assert numbers(read(topics=f"{topic},{other}", startingTimestamp=middle.isoformat())) == list(range(1000, 1010))
    assert numbers(read(topics=f"{topic},{other}", endingTimestamp=middle.isoformat())) == list(range(200))
    ends = {other: {"0": 7}}
    assert numbers(
        read(topic=other, startingOffsets=json.dumps({other: {"0": 2}}), endingOffsets=json.dumps(ends))
    ) == [*range(1002, 1007)]
    assert read(topic=other, startingOffsets="latest").count() == 0


def test_filters_are_judged_by_the_broker(
    topic: str, send: Callable[..., None], read: Callable[..., DataFrame]
) -> None:
    send(topic, range(100), tag="a")
    send(topic, range(100, 150), tag="b", properties={"amount": "7"})
    assert numbers(read(topic=topic, tagFilter="b || c")) == list(range(100, 150))
    assert numbers(read(topic=topic, sqlFilter="amount > 6", minPartitions=9)) == list(range(100, 150))
    assert read(topic=topic, tagFilter="c").count() == 0


def test_large_messages_and_many(topic: str, broker: BrokerProcess, read: Callable[..., DataFrame]) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message(topic, bytes([number]) * 1_000_000) for number in range(24)])
        producer.send_many([Message(topic, b"small") for _ in range(3000)])
    sizes = read("value binary", topic=topic).selectExpr("length(value) AS size").groupBy("size").count().collect()
    assert {row["size"]: row["count"] for row in sizes} == {1_000_000: 24, 5: 3000}
    few = read("offset bigint", topic=topic, messagesPerRequest=7, startingOffsets=json.dumps({topic: {"0": -1}}))
    assert few.count() == read(topic=topic).where("queue <> 0").count()


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({"topik": "x"}, None, "no option 'topik'; did you mean 'topic'?"),
        ({}, None, "name what to read by one of topic, topics, topicPattern and assign"),
        ({"topic": "x", "startingOffsets": "soon"}, None, "startingOffsets 'soon' cannot be read"),
        ({"topic": "x"}, "ofset bigint", "messages have no column 'ofset'; did you mean 'offset'?"),
        ({"topic": "x"}, "offset int", "the column 'offset' is of type bigint, not int"),
        ({"topic": "no-such-topic"}, None, "no-such-topic"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    read: Callable[..., DataFrame], options: dict[str, Any], schema: str | None, words: str
) -> None:
    with pytest.raises(AnalysisException) as refused:
        read(schema, **options).count()
    (line,) = [line for line in str(refused.value).splitlines() if "halfmq" in line or "client_core" in line]
    assert words in line
    assert "Traceback" not in str(refused.value)


def test_sql_reads_topics_through_views_and_is_told_so_where_it_makes_a_table(
    topic: str, send: Callable[..., None], broker: BrokerProcess, spark: SparkSession
) -> None:
    send(topic, range(10))
    options = f"OPTIONS (endpoint '{broker.endpoint}', topic '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING halfmq {options}")
    try:
        assert spark.sql("SELECT count(*) FROM seen").first()[0] == 10  # type: ignore[index]
    finally:
        spark.catalog.dropTempView("seen")
    with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE made USING halfmq {options}")


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_behind_the_end_are_refused(
    topic: str, send: Callable[..., None], read: Callable[..., DataFrame], admin: Admin, option: str
) -> None:
    """They gave a table without rows, or with fewer than were asked for."""
    one = f"{topic}-one"
    admin.create_topic(one, queues=1)
    send(one, range(10))
    read(topic=one, **{option: json.dumps({one: {"0": 10}})}).count()
    with pytest.raises(AnalysisException, match=f"{option} names offset 11 of queue 0 of '{one}', which ends at 10"):
        read(topic=one, **{option: json.dumps({one: {"0": 11}})}).count()


def test_a_stream_goes_on_where_it_was(topic: str, send: Callable[..., None], queries: Queries, admin: Admin) -> None:
    for start in range(0, 1000, 100):
        send(topic, range(start, start + 100))
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 300}
    assert [progress["numInputRows"] for progress in queries.run(**options)] == [300, 300, 300, 100]
    assert queries.values() == list(range(1000))
    assert queries.run(**options) == []
    send(topic, range(1000, 1050))
    # Queues that a topic gets later are read from their beginning.
    admin.update_topic(topic, queues=7)
    for start in range(1050, 1200, 10):
        send(topic, range(start, start + 10))
    progress = queries.run(**options)
    assert sum(each["numInputRows"] for each in progress) == 200
    (source,) = progress[-1]["sources"]
    assert set(json.loads(source["endOffset"])[topic]) == {str(queue) for queue in range(7)}
    assert source["latestOffset"] == source["endOffset"]
    assert queries.values() == list(range(1200))


def test_a_micro_batch_has_no_more_bytes_than_it_may(broker: BrokerProcess, topic: str, queries: Queries) -> None:
    def size(number: int) -> int:
        return 300_000 if number % 50 == 7 else 1000

    queues = 4
    most = 100_000
    with Producer(broker.endpoint) as producer:
        for start in range(0, 400, 50):
            bodies = [str(number).ljust(size(number)).encode() for number in range(start, start + 50)]
            producer.send_many([Message(topic, body) for body in bodies])
    options = {"topic": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": str(most)}
    batches: dict[int, list[int]] = {}
    queries.run(lambda frame, batch: batches.update({batch: numbers(frame)}), **options)
    assert sorted(number for batch in batches.values() for number in batch) == list(range(400))
    for batch in batches.values():
        sizes = sorted(map(size, batch))
        # A message of every queue may be larger than there is room for.
        assert sum(sizes) <= most or sum(sizes[:-queues]) <= most
        assert sum(1 for each in sizes if each > most) <= queues
    small = [batch for batch in batches.values() if max(map(size, batch)) <= most]
    assert max(map(len, small), default=0) <= most // 1000
    assert len(batches) >= (400 * 1000 + 8 * 300_000) // (most + queues * 300_000)


def test_a_stream_begins_at_the_end_where_nothing_is_said(
    topic: str, send: Callable[..., None], queries: Queries
) -> None:
    send(topic, range(10))
    assert queries.run(topic=topic) == []
    send(topic, range(10, 20))
    queries.run(topic=topic)
    assert queries.values() == list(range(10, 20))


def test_a_micro_batch_is_repeated_as_it_was(topic: str, send: Callable[..., None], queries: Queries) -> None:
    """After a kill between the end of a micro-batch and its note."""
    send(topic, range(100))
    options = {"topic": topic, "startingOffsets": "earliest", "minPartitions": 6, "maxOffsetsPerTrigger": 60}
    first: dict[int, list[int]] = {}
    queries.run(lambda frame, batch: first.update({batch: numbers(frame)}), **options)
    assert sorted(first[0] + first[1]) == list(range(100))
    forget_last_commit(queries.checkpoint)
    send(topic, range(100, 150))
    again: dict[int, list[int]] = {}
    queries.run(lambda frame, batch: again.update({batch: numbers(frame)}), **options)
    assert again == {1: first[1], 2: list(range(100, 150))}


def test_topics_that_begin_to_match_a_pattern(
    topic: str, admin: Admin, send: Callable[..., None], queries: Queries
) -> None:
    send(topic, range(10))
    options = {"topicPattern": f"{topic}.*", "startingOffsets": "latest"}
    assert queries.run(**options) == []
    admin.create_topic(f"{topic}-new")
    send(f"{topic}-new", range(10, 20))
    queries.run(**options)
    assert queries.values() == list(range(10, 20))


def test_progress_of_a_group_is_reported_and_spares_what_was_not_read(
    broker: BrokerProcess, topic: str, admin: Admin, send: Callable[..., None], queries: Queries
) -> None:
    group = f"{topic}-readers"
    admin.create_group(group, keep_unread=True)
    send(topic, range(100))
    options = {"topic": topic, "startingOffsets": "earliest", "group": group, "maxOffsetsPerTrigger": 40}
    queries.run(**options)
    assert sum(each.lag for each in admin.group_progress(group)) == 0
    assert sum(each.committed_offset for each in admin.group_progress(group)) == 100
    send(topic, range(100, 130))
    assert sum(each.lag for each in admin.group_progress(group)) == 30
    admin.update_topic(topic, retention=0.001)
    assert forget(broker, topic) == 100
    assert sum(each["numInputRows"] for each in queries.run(**options)) == 30
    assert queries.values() == list(range(130))


def test_a_group_that_is_not_there_ends_the_query(topic: str, send: Callable[..., None], queries: Queries) -> None:
    send(topic, range(10))
    with pytest.raises(StreamingQueryException, match="no consumer group 'nobody'"):
        queries.run(topic=topic, startingOffsets="earliest", group="nobody")


@pytest.mark.parametrize("allowed", [False, True])
def test_messages_that_are_gone_before_they_were_read(
    broker: BrokerProcess, topic: str, admin: Admin, send: Callable[..., None], queries: Queries, allowed: bool
) -> None:
    send(topic, range(50))
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    queries.run(**options)
    send(topic, range(50, 100))
    admin.update_topic(topic, retention=0.001)
    assert forget(broker, topic) == 100
    admin.update_topic(topic, retention=3600)
    send(topic, range(100, 120))
    if allowed:
        queries.run(**options, failOnDataLoss="false")
        assert queries.values() == [*range(50), *range(100, 120)]
    else:
        with pytest.raises(StreamingQueryException, match=r"are gone before they were read.*failOnDataLoss"):
            queries.run(**options)


def test_a_filter_does_not_lead_behind_the_end(
    topic: str, admin: Admin, send: Callable[..., None], queries: Queries
) -> None:
    """A micro-batch has what passes in its own range, and nothing of the next one."""
    for start in range(0, 4000, 500):
        send(topic, range(start, start + 500), tag="rare" if start == 2500 else "usual")
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 700, "tagFilter": "rare"}
    queries.run(**options)
    assert queries.values() == list(range(2500, 3000))


@pytest.mark.parametrize("allowed", [False, True])
def test_a_topic_that_was_made_anew(
    topic: str, admin: Admin, send: Callable[..., None], queries: Queries, allowed: bool
) -> None:
    admin.delete_topic(topic)
    admin.create_topic(topic, queues=1)
    send(topic, range(50))
    options = {"topic": topic, "startingOffsets": "earliest"}
    queries.run(**options)
    admin.delete_topic(topic)
    admin.create_topic(topic, queues=1)
    send(topic, range(50, 60))
    if allowed:
        queries.run(**options, failOnDataLoss="false")
        assert queries.values() == list(range(60))
    else:
        with pytest.raises(PySparkException, match="are gone before they were read"):
            queries.run(**options)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_topic_that_is_gone_at_a_restart(
    topic: str, admin: Admin, send: Callable[..., None], queries: Queries, allowed: bool
) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, queues=1)
    send(topic, range(20))
    send(other, range(20, 30))
    options = {"topics": f"{topic},{other}", "startingOffsets": "earliest"}
    queries.run(**options)
    admin.delete_topic(topic)
    send(other, range(30, 40))
    if allowed:
        queries.run(**options, failOnDataLoss="false")
        assert queries.values() == list(range(40))
        with pytest.raises(PySparkException, match=topic):
            queries.anew().run(**options, failOnDataLoss="false")
    else:
        with pytest.raises(PySparkException, match=topic):
            queries.run(**options)
