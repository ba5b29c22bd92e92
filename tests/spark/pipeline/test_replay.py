"""Replay: what was archived is in the other topic once, however often it was begun."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from consumer_sdk import QueueReader
from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.archive import Archive, Compaction
from halfmq_pipeline.replay import Replay
from producer_sdk import Message, Producer
from support.spark import arrived

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess


class Interrupted(Exception):
    """What stands for a kill between two parts."""


@pytest.fixture
def target(topic: str, admin: Admin) -> str:
    admin.create_topic(f"{topic}-again")
    return f"{topic}-again"


@pytest.fixture
def replay(
    broker: BrokerProcess, topic: str, target: str, spark: SparkSession, tmp_path: Path
) -> Callable[..., tuple[int, int]]:
    """Archives what is new, then replays."""
    folder = str(tmp_path)

    def run(**settings: Any) -> tuple[int, int]:
        Archive(folder, {"endpoint": broker.endpoint, "topic": topic}, messages_per_file=200).run(spark)
        wanted = {"name": topic, "messages_per_part": 150} | settings
        return Replay(folder, topic, target, options={"endpoint": broker.endpoint}, **wanted).run(spark)

    return run


def test_a_replay_that_is_interrupted_goes_on(
    broker: BrokerProcess,
    topic: str,
    target: str,
    spark: SparkSession,
    send: Callable[..., None],
    replay: Callable[..., tuple[int, int]],
    tmp_path: Path,
) -> None:
    for start in range(0, 500, 50):
        send(topic, range(start, start + 50))
    lines: list[str] = []

    def interrupt(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        replay(say=interrupt)
    assert lines[1].startswith("part 2 of 4: 300 of 500 messages, ")
    assert arrived(broker.endpoint, target).total() == 300
    # What comes into the archive meanwhile is not of this plan; that its files become others does no harm.
    send(topic, range(500, 600))
    Compaction(str(tmp_path)).run(spark)
    assert replay() == (200, 2)
    assert replay() == (0, 0)
    assert arrived(broker.endpoint, target) == dict.fromkeys(range(500), 1)


def test_what_messages_have_comes_along(
    broker: BrokerProcess, topic: str, target: str, replay: Callable[..., tuple[int, int]]
) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many(
            [
                Message(topic, f"{number}".encode(), tag="t", keys=["a", "b"], properties={"x": "1"}, message_group="g")
                for number in range(300)
            ]
        )
    replay(origin_property="origin", messages_per_part=70)
    with QueueReader(broker.endpoint) as reader:
        (queue,) = [each.queue for each in reader.queue_offsets(target) if each.max_offset]
        messages = reader.read_queue(target, queue, 0, 1000).messages
    assert [message.text for message in messages] == [f"{number}" for number in range(300)]
    first = messages[0]
    assert (first.tag, first.keys, first.message_group) == ("t", ("a", "b"), "g")
    origin = first.properties["origin"].split("/")
    assert (origin[0], origin[2], first.properties["x"]) == (topic, "0", "1")


def test_a_time_is_replayed(
    broker: BrokerProcess, topic: str, target: str, send: Callable[..., None], replay: Callable[..., tuple[int, int]]
) -> None:
    send(topic, range(100))
    with QueueReader(broker.endpoint) as reader:
        (queue,) = [each.queue for each in reader.queue_offsets(topic) if each.max_offset]
        last = reader.read_queue(topic, queue, 99).messages[0].stored_at
    since = last + timedelta(microseconds=1)
    send(topic, range(100, 200))
    assert replay(since=since) == (100, 1)
    assert arrived(broker.endpoint, target) == dict.fromkeys(range(100, 200), 1)
    assert replay(name=f"{topic}-2", until=since) == (100, 1)
    with pytest.raises(ConfigurationError, match=r"no messages of .* in this time"):
        replay(name=f"{topic}-3", since=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(ConfigurationError, match="was begun with another until: None; take another name"):
        replay(until=since, since=since)


def test_a_name_is_of_one_plan(
    broker: BrokerProcess,
    topic: str,
    target: str,
    spark: SparkSession,
    send: Callable[..., None],
    replay: Callable[..., tuple[int, int]],
    tmp_path: Path,
) -> None:
    """And a part is not written without its files."""
    send(topic, range(100))
    replay()
    (plan,) = tmp_path.glob("_replays/*.json")
    plan.unlink()
    with pytest.raises(ConfigurationError, match="take another name"):
        replay()
    # Of a plan whose first part is written the files go.
    with pytest.raises(Interrupted):
        replay(name=f"{topic}-2", messages_per_part=60, say=_interrupt)
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    again = Replay(str(tmp_path), topic, target, f"{topic}-2", {"endpoint": broker.endpoint})
    with pytest.raises(ConfigurationError, match="are in the plan, and no longer in the archive"):
        again.run(spark)
    assert arrived(broker.endpoint, target).total() == 160


def _interrupt(_: str) -> None:
    raise Interrupted


def test_a_name_that_cannot_be(replay: Callable[..., tuple[int, int]]) -> None:
    with pytest.raises(ConfigurationError, match="must have 1 to 70 of the characters"):
        replay(name="a/b")
