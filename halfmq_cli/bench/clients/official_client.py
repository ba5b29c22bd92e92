"""RocketMQ's official Python client; only in a separate process, because importing the package starts the client."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

from halfmq_cli.bench.load import GROUP, TOPIC, body_of, marked

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCH, _INVISIBLE, _AWAIT = 32, 60, 1


class _Checker(TransactionChecker):  # type: ignore[misc]
    """Gets no checks: all transactions are committed at once."""

    def check(self, message: Message) -> int:
        """Returns UNKNOWN."""
        return int(TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


class Official:
    """A producer and a consumer, used by some threads."""

    def __init__(self, endpoint: str, threads: int, size: int) -> None:
        """Starts both."""
        configuration = ClientConfiguration(endpoint, Credentials("", ""))
        self._rest = body_of(size)
        self._threads = threads
        self._numbers = itertools.count()
        self._producer = Producer(configuration, (TOPIC,), checker=_Checker())
        self._producer.startup()
        self._consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression()}, await_duration=_AWAIT)
        self._consumer.startup()
        self._doing: dict[str, Callable[[], int]] = {
            "send": self._send,
            "transaction": self._transaction,
            "receive": self._receive,
        }

    def work(self, what: str, seconds: float) -> dict[str, Any]:
        """Repeats an operation for some seconds; returns the number of runs, and the duration of each."""
        one, until = self._doing[what], time.monotonic() + seconds

        def loop() -> tuple[int, list[float]]:
            done, times = 0, []
            while (start := time.monotonic()) < until:
                done += one()
                times.append((time.monotonic() - start) * 1e3)
            return done, times

        start, cpu = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(self._threads) as pool:
            parts = [future.result() for future in [pool.submit(loop) for _ in range(self._threads)]]
        return {
            "done": sum(done for done, _ in parts),
            "seconds": time.monotonic() - start,
            "cpu_s": time.process_time() - cpu,
            "ms": [each for _, times in parts for each in times],
        }

    def _message(self) -> Message:
        message = Message()
        message.topic, message.body = TOPIC, marked(next(self._numbers), self._rest)
        return message

    def _send(self) -> int:
        self._producer.send(self._message())
        return 1

    def _transaction(self) -> int:
        transaction = self._producer.begin_transaction()
        self._producer.send(self._message(), transaction)
        transaction.commit()
        return 1

    def _receive(self) -> int:
        received = self._consumer.receive(_BATCH, _INVISIBLE)
        for message in received:
            self._consumer.ack(message)
        return len(received)
