"""Workers of the shop of `halfmq bench ways`: they receive orders, and do something about each."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from consumer_sdk import Consumer
from halfmq_cli.bench.clients.conversation import QUIET, missing
from halfmq_cli.bench.load import GROUP, made_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer_sdk import ReceivedMessage


class Workers:
    """A consumer whose handler deals with one order at a time in each of its threads."""

    def __init__(self, endpoint: str, topic: str, handle: Callable[[ReceivedMessage], object], threads: int) -> None:
        """Starts them, and waits until they receive."""
        self._handle = handle
        self._changed = threading.Condition()
        self._latencies: list[float] = []
        self._failure: Exception | None = None
        self._threads: set[int] = set()
        self._consumer = Consumer(endpoint, GROUP, topic, start="earliest")
        self._thread = threading.Thread(target=self._consumer.run, args=(self._do, threads), daemon=True)
        self._thread.start()
        self._consumer.wait_until_subscribed(QUIET)

    def __contains__(self, thread: object) -> bool:
        """Whether a thread, by its identifier, is one of them."""
        return thread in self._threads

    def _do(self, message: ReceivedMessage) -> None:
        self._threads.add(threading.get_ident())
        try:
            self._handle(message)
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify()
            raise
        latency = (time.monotonic_ns() - made_at(message.body)) / 1e6
        with self._changed:
            self._latencies.append(latency)
            self._changed.notify()

    def done(self, orders: int) -> list[float]:
        """Waits until so many further orders are dealt with; milliseconds from the making of each to its end.

        Raises:
            TimeoutError: Nothing happened for a long time.
            Exception: What the handler raised.
        """
        with self._changed:
            while (before := len(self._latencies)) < orders:
                if self._failure is not None:
                    raise self._failure
                if not self._changed.wait(QUIET):
                    raise missing(orders - before)
            latencies, self._latencies = self._latencies[:orders], self._latencies[orders:]
            return latencies

    def close(self) -> None:
        """Ends them."""
        self._consumer.stop()
        self._thread.join()
        self._consumer.close()
