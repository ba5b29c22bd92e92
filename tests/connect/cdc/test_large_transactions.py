"""A transaction larger than memory may be: it is published whole and once, also when its publication is cut off."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from client_core.admin import Admin
from connect.cdc.sources import PATIENCE, CaptureProcess, Source, Topic, file_of
from consumer_sdk import Consumer, QueueReader
from halfmq.v1 import sink_pb2, sink_pb2_grpc
from support.brokers import BrokerProcess
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 60_000
LENGTH = 1024
MOST = 132 * MIB
"""Memory of a subscription that publishes a large transaction: what docs/decisions/0044 tells of 200,000 rows."""
NOTE = "x" * (LENGTH - 8)


@pytest.fixture
def broker(sqlite_url: str) -> Iterator[BrokerProcess]:
    """A broker in a process of its own."""
    with BrokerProcess(sqlite_url) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("rows", queues=1)
            admin.create_group("watchers")
        yield broker


@pytest.fixture
def tables(source: Source) -> Iterator[None]:
    """Tables that are dropped after the test; the log begins another file behind what is large."""
    source.run(
        f"CREATE TABLE shop.lots (id INT PRIMARY KEY, note VARCHAR({LENGTH}) NOT NULL)",
        "CREATE TABLE shop.mark (id INT PRIMARY KEY)",
    )
    yield
    source.run("DROP DATABASE shop", "FLUSH BINARY LOGS")


def insert_lots(source: Source) -> None:
    """All rows in one transaction."""
    with source.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for start in range(0, ROWS, 1000):
            rows = ",".join(f"({number}, '{number:08d}{NOTE}')" for number in range(start, start + 1000))
            cursor.execute(f"INSERT INTO shop.lots VALUES {rows}")
        connection.commit()


class Watch:
    """What the broker has of the transaction, and what is seen of it; the topic has one message in front of it."""

    def __init__(self, endpoint: str) -> None:
        """Connects."""
        self._channel = grpc.insecure_channel(endpoint)
        self._sinks = sink_pb2_grpc.SinkServiceStub(self._channel)
        self._reader = QueueReader(endpoint)
        self._consumer = Consumer(endpoint, "watchers", "rows")
        self.consumed: list[str] = []

    def stored(self) -> int:
        """Messages at the broker that are not published yet."""
        found: sink_pb2.GetSinkResponse = self._sinks.GetSink(sink_pb2.GetSinkRequest(sink="cdc-shop"))
        return found.sink.waiting_messages

    def consume(self, timeout: float = PATIENCE) -> int:
        """Handles messages, as an application does; their number."""
        found = self._consumer.receive(1000, timeout=timeout)
        self.consumed += [message.message_id for message in found]
        if found:
            self._consumer.ack(found, wait=False)
        return len(found)

    def whole(self) -> bool:
        """Whether all of the transaction is seen; until then nothing of it is, by readers and by consumers."""
        consumed = self.consume(0.05)
        (queue,) = self._reader.queue_offsets("rows")
        assert queue.max_offset in {1, 1 + ROWS}
        assert not consumed or queue.max_offset > 1
        return queue.max_offset > 1

    def until_stored(self, rows: int) -> None:
        """Waits until so many rows are stored, or the whole is seen."""
        until, last = time.monotonic() + PATIENCE, 0
        while not self.whole() and (count := self.stored()) < rows:
            if count != last:
                until, last = time.monotonic() + PATIENCE, count
            assert time.monotonic() < until, f"only {count} rows came"

    def close(self) -> None:
        """Ends the connections."""
        self._consumer.close()
        self._reader.close()
        self._channel.close()


@pytest.mark.usefixtures("tables")
@pytest.mark.timeout(900)
def test_it_is_published_whole_and_once_in_bounded_memory(
    source: Source, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic, watch = Topic(broker.endpoint), Watch(broker.endpoint)
    running = CaptureProcess(file_of(broker.endpoint, source.host), tmp_path)
    try:
        running.await_log("following")
        source.run("INSERT INTO shop.mark VALUES (1)")
        assert watch.consume() == 1
        before = resident(running.process.pid)
        forget_peak(running.process.pid)
        insert_lots(source)
        watch.until_stored(ROWS // 3)
        peaks = [resident(running.process.pid, peak=True)]
        running.kill()
        assert ROWS // 3 <= watch.stored() < ROWS
        assert not watch.whole()
        running.start()
        watch.until_stored(ROWS + 1)
        peaks.append(resident(running.process.pid, peak=True))
        source.run("INSERT INTO shop.mark VALUES (2)")
        topic.until(lambda found: len(found) >= ROWS + 2)
        while len(set(watch.consumed)) < ROWS + 2:
            assert watch.consume() > 0
        assert running.stop()[0] == 0
        topic.read()
    except BaseException:
        print("".join(running.lines))
        raise
    finally:
        topic.close()
        watch.close()
        running.stop()
    # It is 106 MiB, of which 40 are for the transaction; were the queue not bounded, 187 on MariaDB and 216 on MySQL.
    for peak in peaks:
        assert peak < MOST
        assert peak - before < ROWS * LENGTH
    first, *lots, last = topic.messages
    for number, message in enumerate(lots):
        row = json.loads(message.body)
        assert (row["op"], row["source"]["row"]) == ("c", number)
        assert row["after"] == {"id": number, "note": f"{number:08d}{NOTE}"}
    assert len(lots) == ROWS
    assert len({message.stored_at for message in lots}) == 1
    assert [json.loads(message.body)["after"] for message in (first, last)] == [{"id": 1}, {"id": 2}]
    ids = {message.message_id for message in topic.messages}
    assert len(ids) == ROWS + 2
    assert set(watch.consumed) == ids
