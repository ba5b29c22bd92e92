"""Reading queues ahead: within one budget of bytes for all of them, and each queue has its turn."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from client_core.connection import BackgroundRunner, BrokerLink
from consumer_sdk import QueueReader
from halfmq_connect.kafka.feed import Feed, Portion, QueueAt
from halfmq_connect.outages import Outage
from producer_sdk import Admin, Message, Producer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.brokers import BrokerProcess

QUEUES = 24
MIB = 1024 * 1024
PATIENCE = 60.0


@contextmanager
def feed_of(broker: BrokerProcess, topic: str, max_bytes: int, max_records: int = 5000) -> Iterator[Feed]:
    """A feed of all queues of a topic."""
    runner, link = BackgroundRunner("test"), BrokerLink(broker.endpoint)
    with QueueReader(broker.endpoint) as reader:
        queues = reader.queue_offsets(topic)
    feed = Feed(link, runner, Outage("halfmq"), max_records, max_bytes)
    try:
        for queue in queues:
            feed.add(QueueAt(topic, queue.topic_id, queue.queue), 0)
        yield feed
    finally:
        feed.close()
        runner.run(link.close())
        runner.close()


def bytes_of(portions: list[Portion]) -> int:
    return sum(columns.ByteSize() for portion in portions for columns in portion.columns)


def fill(producer: Producer, topic: str, count: int, size: int) -> None:
    """Messages whose bytes are in their properties."""
    for start in range(0, count, 20):  # Those of a call go to one queue.
        producer.send_many([Message(topic, f"{start + n}", properties={"p": "x" * size}) for n in range(20)])


def taken(feed: Feed, before: Sequence[Portion] = ()) -> list[Portion]:
    """The next messages; a queue that was waited for in vain counts for nothing."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if portions := feed.take(1.0, before):
            return portions
    raise AssertionError("nothing comes")


@pytest.fixture
def wide(admin: Admin, name: str) -> str:
    """A topic of many queues."""
    admin.create_topic(name, queues=QUEUES)
    return name


@pytest.mark.parametrize("max_bytes", [1, MIB, 8 * MIB])
def test_all_queues_share_one_budget_and_each_has_its_turn(
    broker: BrokerProcess, wide: str, producer: Producer, max_bytes: int
) -> None:
    count = 2400
    fill(producer, wide, count, 15_000)
    next_offsets: Counter[int] = Counter()
    turns: Counter[int] = Counter()
    with QueueReader(broker.endpoint) as reader:
        ends = {queue.queue: queue.max_offset for queue in reader.queue_offsets(wide)}
    with feed_of(broker, wide, max_bytes) as feed:
        while sum(next_offsets.values()) < count:
            done, _ = wait([future for future, queue in feed._reads.items() if queue.behind], PATIENCE)
            assert bytes_of([each.result() for each in done]) <= max_bytes + MIB
            portions = taken(feed)
            assert bytes_of(portions) <= max_bytes + MIB
            for portion in portions:
                assert portion.start == next_offsets[portion.queue.queue]
                next_offsets[portion.queue.queue] = portion.next_offset
                turns[portion.queue.queue] += 1
            behind = [turns[queue] for queue, end in ends.items() if next_offsets[queue] < end]
            assert not behind or max(turns.values()) - min(behind) <= 3, turns
    assert next_offsets == Counter(ends)


def test_queues_that_are_empty_take_nothing_of_the_budget(broker: BrokerProcess, wide: str, producer: Producer) -> None:
    with feed_of(broker, wide, MIB) as feed:
        for _ in range(3):  # Whatever they were asked at first, they wait now.
            feed.take(0.1)
        fill(producer, wide, 480, 15_000)
        found = 0
        while found < 480:
            portions = taken(feed)
            assert bytes_of(portions) <= 2 * MIB
            found += sum(portion.count for portion in portions)
    assert found == 480


def test_what_a_transaction_has_already_counts(broker: BrokerProcess, wide: str, producer: Producer) -> None:
    fill(producer, wide, 480, 15_000)
    with feed_of(broker, wide, MIB) as feed:
        portions = taken(feed)
        while bytes_of(portions) < MIB:
            portions += taken(feed, portions)
        assert feed.take(PATIENCE, portions) == []
        assert MIB <= bytes_of(portions) <= 2 * MIB
    with feed_of(broker, wide, 64 * MIB, max_records=100) as feed:
        portions = taken(feed)
        while sum(portion.count for portion in portions) < 100:
            portions += taken(feed, portions)
        assert feed.take(PATIENCE, portions) == []
        assert 100 <= sum(portion.count for portion in portions) < 200


@pytest.mark.parametrize("idle", [True, False])
def test_large_messages_that_come_to_all_queues_at_once(
    broker: BrokerProcess, wide: str, producer: Producer, idle: bool
) -> None:
    """What an answer brings is not known before it came: all of them together would be many times the budget."""
    body = b"x" * 2 * MIB
    most = MIB + len(body) + 1024

    def fill_all() -> None:
        for _ in range(QUEUES):  # Each call goes to the next queue.
            producer.send(wide, body)

    if not idle:
        fill_all()
    with feed_of(broker, wide, MIB) as feed:
        if idle:
            while feed._due or any(queue.behind for queue in feed._reads.values()):
                feed.take(0.1)
            fill_all()
        # All that is under way is answered before anything is taken.
        done, waiting = wait(feed._reads, PATIENCE)
        assert not waiting
        assert bytes_of([each.result() for each in done]) <= most
        found: Counter[int] = Counter()
        while found.total() < QUEUES:
            portions = taken(feed)
            assert bytes_of(portions) <= most
            assert feed._room.held <= most
            found.update(portion.queue.queue for portion in portions)
    assert found == Counter(range(QUEUES))


def test_what_could_not_be_received_has_its_turn_still(broker: BrokerProcess, wide: str, producer: Producer) -> None:
    """Large messages of some queues do not keep the small ones of others waiting."""
    large = {}
    for _ in range(QUEUES // 2):
        for _ in range(8):
            place = producer.send(wide, b"x" * MIB, message_group=f"{len(large)}")
        large[place.queue] = place.offset
    small = [producer.send(wide, "x") for _ in range(QUEUES)]
    with feed_of(broker, wide, MIB) as feed:
        turns: Counter[int] = Counter()
        awaited = {(place.queue, place.offset) for place in small if place.queue not in large}
        while awaited:
            for portion in taken(feed):
                turns[portion.queue.queue] += 1
                awaited -= {(portion.queue.queue, offset) for offset in range(portion.start, portion.next_offset)}
        assert max(turns.values()) <= 3, turns
