"""A process that records and sends what is missing is killed again and again: each row has one message in the end.

Another one goes on: one that is started then or just before, or one that works on the same rows already.

HALFMQ_RECONCILE_KILLS is how often it is killed on each database (6); in full:

    HALFMQ_RECONCILE_KILLS=100 scripts/test tests/ways/reconciliation/test_kills.py
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from consumer_sdk import Admin, ExhaustedPolicy, QueueReader
from producer_sdk import Message, TransactionProducer
from producer_sdk.testing import embedded_broker
from ways.reconciliation.recording import of_all_sales
from ways.reconciliation.sales import sell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from consumer_sdk import StoredMessage
    from ways.shops import Shop

KILLS = int(os.environ.get("HALFMQ_RECONCILE_KILLS", "6"))
MOMENTS = ("records", "sends", "sent")
"""Lines of the processes; the one that writes it is killed soon afterwards."""
SOON = 0.03
LEASE = 0.5
MOST_UNTOLD = 30
"""Rows of a transaction without messages."""
LONGEST_DOUBT = 0.3
"""Seconds from a row's commit to that of its message."""
PATIENCE = 120.0
_TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600 + 30 * KILLS)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker in this process; what a killed process held is delivered again soon."""
    with embedded_broker(lease=LEASE) as made:
        yield made


class Recording:
    """recording.py as a process; its lines are among those of all."""

    def __init__(self, lines: Lines, shop: Shop, endpoint: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ways.reconciliation.recording", endpoint, topic, shop.url],
            cwd=_TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.killed = False
        self._lines = lines
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put((self, line.rstrip("\n")))
        self._lines.put((self, ""))

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def stop(self) -> None:
        """Ends it after its round."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0
        self._reader.join(PATIENCE)


class Lines(queue.SimpleQueue[tuple[Recording, str]]):
    """The lines of all processes."""

    last = ""
    """The one that was waited for."""

    def until(self, wanted: str) -> Recording:
        """Waits for a line that begins with some words; which process wrote it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            writer, line = self.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line or writer.killed, f"one ended by itself: {writer.process.wait(PATIENCE)}"
            if not writer.killed and f"{line} ".startswith(f"{wanted} "):
                self.last = line
                return writer

    def until_two_send(self) -> None:
        """Waits until two processes send the message of the same row."""
        deadline = time.monotonic() + PATIENCE
        first: dict[str, Recording] = {}
        while time.monotonic() < deadline:
            writer = self.until("sends")
            if first.setdefault(self.last, writer) is not writer:
                return
        pytest.fail("no two processes send the same")

    def forget(self) -> None:
        """Forgets those so far."""
        while not self.empty():
            self.get()


class Seller(threading.Thread):
    """Writes sales, most of them in transactions with a message; of the others no message is sent."""

    def __init__(self, shop: Shop, endpoint: str, topic: str, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._shop, self._endpoint, self._topic, self._chance = shop, endpoint, topic, chance
        self._over = threading.Event()
        self.told: set[str] = set()
        self.untold: set[str] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with TransactionProducer(self._endpoint, f"of-{self._topic}") as producer:
                number = 0
                while not self._over.wait(self._chance.uniform(0.0, 0.02)):
                    number += 1
                    if self._chance.random() < 0.1:
                        numbers = range(number, number + self._chance.randint(1, MOST_UNTOLD))
                        sell(self._shop, *numbers, ago=0.0)
                        self.untold |= set(map(str, numbers))
                        number = numbers[-1]
                    else:
                        # The time of the row is later than its half message: a round without a grace sees either.
                        message = Message(self._topic, '{"amount": "5.00"}', keys=[str(number)])
                        prepared = producer.prepare(message)
                        sell(self._shop, number, ago=0.0)
                        if self._chance.random() < 0.2:
                            self._over.wait(self._chance.uniform(0.0, LONGEST_DOUBT))
                        producer.commit(prepared.transaction_id)
                        self.told.add(str(number))
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._over.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def log_of(endpoint: str, topic: str) -> list[StoredMessage]:
    """All messages of a topic."""
    with QueueReader(endpoint) as reader:
        return [
            message
            for each in reader.queue_offsets(topic)
            for message in reader.read_queue(topic, each.queue, 0, 100_000).messages
        ]


def records(shop: Shop) -> list[str]:
    """The keys of the recorded messages."""
    with shop.engine.connect() as connection:
        return [str(key) for (key,) in connection.execute(sa.text("SELECT business_key FROM halfmq_delivered"))]


def test_each_row_has_one_message_in_the_end(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    chance = random.Random(f"{sales.kind} {KILLS}")
    checked = of_all_sales(sales.engine, broker.endpoint, created)
    checked.create_tables()
    with Admin(broker.endpoint) as admin:
        settings = {"retry_delays": [0.05], "start": "earliest", "keep_unread": True}
        admin.create_group(checked.group, when_exhausted=ExhaustedPolicy.RETRY, **settings)
    seller = Seller(sales, broker.endpoint, created, chance)
    lines = Lines()

    def start() -> Recording:
        return Recording(lines, sales, broker.endpoint, created)

    processes = [start()]
    seller.start()
    try:
        for number in range(KILLS):
            if number % 2:
                processes.append(start())
            if number % 4 == 1:
                lines.until_two_send()
            lines.forget()
            killed = lines.until(MOMENTS[number % len(MOMENTS)])
            time.sleep(chance.uniform(0.0, SOON))
            killed.kill()
            processes.remove(killed)
            processes = processes or [start()]
        lines.until("round")
        seller.stop()
        assert seller.error is None
        rows = len(seller.told) + len(seller.untold)
        lines.until(f"round {rows}")
        for each in processes:
            each.stop()
    finally:
        seller.stop()
        for each in processes:
            each.kill()
    with checked.recording():
        last = checked.compare()
    found = log_of(broker.endpoint, created)
    assert Counter(each.keys[0] for each in found) == Counter(seller.told | seller.untold)
    assert {each.keys[0] for each in found if "repaired_by" in each.properties} == seller.untold
    assert Counter(records(sales)) == Counter(seller.told | seller.untold)
    assert (last.rows, last.findings) == (rows, ())
    assert len(seller.told) > 10
    assert len(seller.untold) > 10
