"""The queue in a table and halfmq's, with the same producers, consumers, kills and freezes: what became of each."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import sqlalchemy as sa

from consumer_sdk import Admin, QueueReader
from consumer_sdk.applied import AppliedMessages
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc
from producer_sdk import Message, Producer
from support.databases import KINDS, connect, create_database, drop_database, server_url
from ways import queue_in_mysql
from ways.queue_in_mysql import ArticleQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from support.databases import Kind

PROGRAM = Path(__file__).with_name("worker.py")
PAGE = Path(__file__).parents[3] / "docs" / "ways" / "queue-in-mysql.md"
CYCLES = int(os.environ.get("HALFMQ_QUEUE_CYCLES", "5"))
CONSUMERS, PRODUCERS, GROUPS = 3, 2, 4
FREEZE = 0.7
"""Longer than a lease."""


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    kind: Kind = request.param
    made = create_database(server_url(kind))
    with connect(made, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(queue_in_mysql.TABLE)
        columns = "id BIGINT AUTO_INCREMENT PRIMARY KEY, queue VARCHAR(10) NOT NULL, content VARCHAR(200) NOT NULL"
        cursor.execute(f"CREATE TABLE effect ({columns})")
    yield made
    drop_database(made)


class Workers:
    """Consumer processes of one queue, which die and freeze."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._processes = [self._start(number) for number in range(CONSUMERS)]

    def _start(self, number: int) -> subprocess.Popen[str]:
        queue, url, *rest = self._arguments
        command = [sys.executable, str(PROGRAM), queue, url, f"owner-{number}", *rest]
        paths = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=paths)

    def kill(self, number: int) -> None:
        process = self._processes[number]
        process.kill()
        process.communicate()
        self._processes[number] = self._start(number)

    def freeze(self, number: int) -> None:
        process = self._processes[number]
        process.send_signal(signal.SIGSTOP)
        time.sleep(FREEZE)
        process.send_signal(signal.SIGCONT)

    def wait_until_ready(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def effects(url: str, queue: str) -> list[str]:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT content FROM effect WHERE queue = %s ORDER BY id", (queue,))
        return [str(row[0]) for row in cursor.fetchall()]


def out_of_order(contents: list[str]) -> int:
    """Messages that came after a later one of their group."""
    last: dict[str, int] = {}
    count = 0
    for content in dict.fromkeys(contents):
        group, number = content.split("-")
        count += int(number) < last.get(group, -1)
        last[group] = max(int(number), last.get(group, -1))
    return count


def test_with_kills_and_freezes(url: str, broker: EmbeddedBroker, topic: str) -> None:
    group = f"of-{topic}"
    engine = sa.create_engine(url)
    AppliedMessages(engine, group).create_tables()
    engine.dispose()
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=4)
        admin.create_group(group, retry_delays=[0.02], max_attempts=1000, start="earliest")
    sent: list[str] = []
    over = threading.Event()

    def produce(number: int) -> None:
        # The same messages into both; each group has one producer, so that its order is known.
        groups = [f"g{each}" for each in range(GROUPS) if each % PRODUCERS == number]
        with connect(url, autocommit=True) as connection, Producer(broker.endpoint) as producer:
            queue, count = ArticleQueue(connection, "producer", 1.0), 0
            while not over.is_set():
                for each in groups:
                    content = f"{each}-{count}"
                    queue.enqueue(content)
                    producer.send_many([Message(topic, content, message_group=each, properties={"content": content})])
                    sent.append(content)
                count += 1
                time.sleep(0.02)

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(PRODUCERS)]
    both = [Workers("article", url), Workers("halfmq", url, broker.endpoint, topic)]
    chance = random.Random(topic)
    try:
        for workers in both:
            workers.wait_until_ready()
        for thread in producers:
            thread.start()
        for _ in range(CYCLES):
            time.sleep(chance.uniform(0.1, 0.3))
            frozen, killed = chance.sample(range(CONSUMERS), 2)
            threads = [threading.Thread(target=workers.freeze, args=(frozen,)) for workers in both]
            for thread in threads:
                thread.start()
            for workers in both:
                workers.kill(killed)
            for thread in threads:
                thread.join()
        over.set()
        for thread in producers:
            thread.join(30)
        wait_until_empty(url, broker.endpoint, topic, group)
    finally:
        over.set()
        for workers in both:
            workers.end()
    found = {queue: effects(url, queue) for queue in ("article", "halfmq")}
    for queue, contents in found.items():
        doubled = sum(count - 1 for count in Counter(contents).values())
        print(
            f"{queue}: {len(sent)} messages, lost {len(set(sent) - set(contents))}, doubled {doubled}, "
            f"out of order {out_of_order(contents)}"
        )
    assert sorted(found["halfmq"]) == sorted(sent), "each has one effect"
    assert out_of_order(found["halfmq"]) == 0
    assert set(found["article"]) == set(sent)


def wait_until_empty(url: str, endpoint: str, topic: str, group: str) -> None:
    deadline = time.monotonic() + 90
    with connect(url, autocommit=True) as connection, QueueReader(endpoint) as reader:
        while True:
            with connection.cursor() as cursor:
                cursor.execute("SELECT COUNT(*) FROM queue")
                ((left,),) = cursor.fetchall()
            lag = sum(each.lag for each in reader.queue_offsets(topic, group))
            if not left and not lag:
                return
            assert time.monotonic() < deadline, (left, lag)
            time.sleep(0.05)


def test_a_frozen_consumer_that_comes_back(url: str, broker: EmbeddedBroker, topic: str) -> None:
    """Step by step: the table lets it finish what a peer has taken over, and delete what the peer still works at."""
    with connect(url, autocommit=True) as first, connect(url, autocommit=True) as second:
        frozen, peer = ArticleQueue(first, "frozen", 0.05), ArticleQueue(second, "peer", 0.05)
        frozen.enqueue("pay 5")
        taken = frozen.take()
        time.sleep(0.1)
        assert peer.take() == taken, "taken over"
        assert taken is not None
        frozen.done(taken[0])
        with second.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM queue")
            assert cursor.fetchone() == (0,), "if the peer dies now, nobody handles it again"
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(f"of-{topic}", start="earliest")
    with Producer(broker.endpoint) as producer, grpc.insecure_channel(broker.endpoint) as channel:
        producer.send(topic, "pay 5")
        consumers = consumer_pb2_grpc.ConsumerServiceStub(channel)
        request = consumer_pb2.PullRequest(
            consumer_group=f"of-{topic}", topics=[topic], max_messages=1, client_id="frozen"
        )
        request.lease_duration.FromMilliseconds(200)
        (held,) = [each for part in consumers.Pull(request) for each in part.deliveries]
        request.client_id = "peer"
        request.wait.FromSeconds(10)
        (again,) = [each for part in consumers.Pull(request) for each in part.deliveries]
        assert again.message.message_id == held.message.message_id, "taken over"
        stale, good = (
            consumers.Ack(consumer_pb2.AckRequest(receipt_handles=[each.receipt_handle])) for each in (held, again)
        )
        assert stale.results[0].error.reason == "RECEIPT_STALE"
        assert not good.results[0].HasField("error")


def test_two_that_belong_together_are_handled_at_once(url: str, broker: EmbeddedBroker, topic: str) -> None:
    """In the table each consumer has the next one; a message group is one consumer's."""
    with connect(url, autocommit=True) as first, connect(url, autocommit=True) as second:
        one, other = ArticleQueue(first, "one", 60.0), ArticleQueue(second, "other", 60.0)
        for content in ("order 7: pay", "order 7: ship"):
            one.enqueue(content)
        taken = [each.take() for each in (one, other)]
        assert [each[1] for each in taken if each is not None] == ["order 7: pay", "order 7: ship"]
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(f"of-{topic}", start="earliest")
    with Producer(broker.endpoint) as producer, grpc.insecure_channel(broker.endpoint) as channel:
        for content in ("order 7: pay", "order 7: ship"):
            producer.send(topic, content, message_group="order 7")
        consumers = consumer_pb2_grpc.ConsumerServiceStub(channel)
        request = consumer_pb2.PullRequest(
            consumer_group=f"of-{topic}", topics=[topic], max_messages=1, client_id="one"
        )
        (pay,) = [each for part in consumers.Pull(request) for each in part.deliveries]
        request.client_id = "other"
        assert [each for part in consumers.Pull(request) for each in part.deliveries] == []
        consumers.Ack(consumer_pb2.AckRequest(receipt_handles=[pay.receipt_handle]))
        (ship,) = [each for part in consumers.Pull(request) for each in part.deliveries]
        assert [each.message.body for each in (pay, ship)] == [b"order 7: pay", b"order 7: ship"]


def test_the_page_shows_the_statements_that_run() -> None:
    page = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    for statement in ("TABLE", "ENQUEUE", "TAKE", "TAKE_OVER", "TAKEN", "DONE"):
        text = re.sub(r"\s+", " ", getattr(queue_in_mysql, statement)).strip()
        assert text in page, statement
