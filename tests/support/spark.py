"""What tests of Spark share: how a kill looks in a checkpoint, and what a topic holds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from broker.storage.adapters.store import Store
from broker.storage.engine.connection import Database
from consumer_sdk import QueueReader
from support.databases import ALL_KINDS
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from producer_sdk import TlsConfig
    from support.brokers import BrokerProcess


EVERYWHERE = bool(os.environ.get("HALFMQ_SPARK_EVERYWHERE"))


def on(*usual: str) -> pytest.MarkDecorator:
    """Which databases the brokers of a module's tests have; all of them with HALFMQ_SPARK_EVERYWHERE=1."""
    return pytest.mark.parametrize("broker", ALL_KINDS if EVERYWHERE else usual, indirect=True, scope="package")


class Driver:
    """A driver's process group: Python, the JVM, and its workers."""

    def __init__(self, *command: str) -> None:
        """Starts it."""
        self._process = subprocess.Popen(
            command,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Nobody gets to say anything."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def finish(self) -> str:
        """Waits for the end of its work; what it said."""
        output, _ = self._process.communicate(timeout=HANG)
        assert self._process.returncode == 0, output
        return output


def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Looks again and again until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def forget_last_commit(checkpoint: Path) -> None:
    """What a kill of the driver between the end of a micro-batch and its note leaves behind."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()


def arrived(endpoint: str, topic: str, *, tls: TlsConfig | None = None) -> Counter[int]:
    """How often each number is in a topic of numbers; all of it is read."""
    found: Counter[int] = Counter()
    with QueueReader(endpoint, tls=tls) as reader:
        for queue in reader.queue_offsets(topic):
            at = queue.min_offset
            while at < queue.max_offset:
                piece = reader.read_queue(topic, queue.queue, at, 10_000)
                assert piece.next_offset > at
                found.update(int(message.body) for message in piece.messages)
                at = piece.next_offset
    return found


def forget(broker: BrokerProcess, topic: str) -> int:
    """What a broker's retention does once in a while, at once; how many messages went."""

    async def trim() -> int:
        database = Database(broker.database)
        store = Store(database, broker_id="forgetful")
        await store.start()
        found = await store.find_topic(topic)
        assert found is not None
        total = 0
        # The broker's own clean-up may hold a queue, and trim some of it.
        while trimmed := sum([await store.trim_queue(found, queue_id) for queue_id in found.queue_ids]):
            total += trimmed
        await store.close()
        database.close()
        return total

    return asyncio.run(trim())
