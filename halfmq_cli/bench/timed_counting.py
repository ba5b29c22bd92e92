"""`python -m halfmq_cli.bench.timed_counting FILE`: a broker that times what it spends on counting for metrics.

SIGUSR1 begins at 0; SIGUSR2 writes what there is since to the file: seconds of processor time in the observer, and
what timing itself took of the process's. Two brokers, with and without, differ by some percent whatever they do, where
anything else runs on the machine; this is a part of one of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from broker.app import Broker
from broker.config import BrokerConfig
from broker.metrics.observing import CountingObserver
from broker.ports.observer import EVENTS, Observer, guarded
from halfmq_cli import logs
from halfmq_cli.serving import run_broker

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN, TELL = signal.SIGUSR1, signal.SIGUSR2
_TRIES = 20_000


class TimedObserver(Observer):
    """Times what another one takes, in each thread by itself: a thread that waits for its turn takes nothing."""

    def __init__(self, observer: Observer) -> None:
        """Takes the other one, and measures what timing takes."""
        self.begin()
        for name in EVENTS:
            setattr(self, name, self._timed(getattr(observer, name)))
        nothing, began = self._timed(lambda: None), time.thread_time_ns()
        for _ in range(_TRIES):
            nothing()
        spent = self._sums[get_ident()]
        self._inside, self._whole = spent[0] / _TRIES, (time.thread_time_ns() - began) / _TRIES

    def begin(self) -> None:
        """Begins at 0."""
        self._sums: dict[int, list[int]] = {}

    def told(self) -> dict[str, float]:
        """Seconds of counting, and of timing, since the beginning."""
        sums = list(self._sums.values())
        counting, calls = sum(each[0] for each in sums), sum(each[1] for each in sums)
        return {
            "counting_s": (counting - calls * self._inside) / 1e9,
            "timing_s": calls * self._whole / 1e9,
        }

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def call(*values: Any) -> None:
            began = time.thread_time_ns()
            method(*values)
            took = time.thread_time_ns() - began
            own = self._sums.get(get_ident())
            if own is None:
                own = self._sums[get_ident()] = [0, 0]
            own[0] += took
            own[1] += 1

        return call


class TimedBroker(Broker):
    """A broker whose counting is timed."""

    def __init__(self, config: BrokerConfig, **settings: Any) -> None:
        """Takes what a Broker takes."""
        super().__init__(config, **settings)
        # In the place of one that is guarded a second time.
        self._observer = self._timed = TimedObserver(guarded(CountingObserver(config.metrics_names)))

    async def start(self) -> None:
        """Starts it, with its signals."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(BEGIN, self._timed.begin)
        loop.add_signal_handler(TELL, self._tell)
        await super().start()

    def _tell(self) -> None:
        file = Path(sys.argv[1])
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(self._timed.told()), encoding="utf-8")
        partial.rename(file)


def main() -> None:
    """Runs it as `halfmq serve` runs a broker."""
    config = BrokerConfig(database=os.environ["HALFMQ_DATABASE"], listen="127.0.0.1:0", auto_create=True)
    logs.set_up(config.log_format, "warning")
    run_broker(config, make_broker=TimedBroker)


if __name__ == "__main__":
    main()
