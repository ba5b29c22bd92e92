"""`python -m halfmq_cli.bench.switched_counting`: a broker that counts for metrics once it gets SIGUSR1.

After SIGUSR2 it counts no longer. Two processes of the same program differ by some percent for as long as they live;
this is the same one with and without. Nobody reads what it counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

from broker.app import Broker
from broker.config import BrokerConfig
from broker.metrics.observing import CountingObserver
from broker.ports.observer import NO_OBSERVER, Observer, guarded
from halfmq_cli import logs
from halfmq_cli.serving import run_broker

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS, COUNTS_NOT = signal.SIGUSR1, signal.SIGUSR2


class SwitchedObserver(Observer):
    """Is another one, or none; costs what that costs."""

    def __init__(self, observer: Observer) -> None:
        """Takes the other one, and is none."""
        self._observer = observer
        self.switch(on=False)

    def switch(self, *, on: bool) -> None:
        """Becomes the other one, or none."""
        for name in [name for name in vars(Observer) if not name.startswith("_")]:
            method: Callable[..., None] = getattr(self._observer if on else NO_OBSERVER, name)
            setattr(self, name, method)


class SwitchedBroker(Broker):
    """A broker whose observer is switched by signals."""

    def __init__(self, config: BrokerConfig, **settings: Any) -> None:
        """Takes what a Broker takes."""
        counting = guarded(CountingObserver(config.metrics_names))
        super().__init__(config, **settings)
        # In the place of one that is guarded a second time.
        self._observer = self._switched = SwitchedObserver(counting)

    async def start(self) -> None:
        """Starts it, with its signals."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(COUNTS, lambda: self._switched.switch(on=True))
        loop.add_signal_handler(COUNTS_NOT, lambda: self._switched.switch(on=False))
        await super().start()


def main() -> None:
    """Runs it as `halfmq serve` runs a broker."""
    config = BrokerConfig(database=os.environ["HALFMQ_DATABASE"], listen="127.0.0.1:0", auto_create=True)
    logs.set_up(config.log_format, "warning")
    run_broker(config, make_broker=SwitchedBroker)


if __name__ == "__main__":
    main()
