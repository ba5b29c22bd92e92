"""A broker at an address: restarted, killed and frozen, and there again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from faults.client import Client
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS = {"first_check": 0.5, "check_interval": 1.0, "max_checks": 5}
SETTINGS = {**CHECKS, "metrics_listen": "127.0.0.1:0", "metrics_interval": 5}


class Station:
    """One broker after the other.

    Attributes:
        endpoint: where all of them listen.
        wrong: what contradicts that they are well.
        cut_short: how often one of them ended before the database had answered: where nothing comes in time.
        before_end: called before one of them is stopped.
    """

    def __init__(self, database: str, number: int) -> None:
        self.number = number
        self.wrong: list[str] = []
        self.cut_short = 0
        self.before_end: Callable[[Station], None] = lambda station: None
        self._database = database
        self.broker = self._started("127.0.0.1:0")
        self.endpoint = self.broker.endpoint

    def restart(self) -> None:
        """SIGTERM, and a new one."""
        self.before_end(self)
        status = self.broker.stop()
        if status == 1 and self.broker.count("though the database has not answered"):
            self.cut_short += 1
        elif status:
            self.wrong.append(f"broker {self.number} ended with status {status} at SIGTERM: {self.broker.log}")
        self._replace()

    def kill(self) -> None:
        """SIGKILL; nobody is there until `start`."""
        self.before_end(self)
        self.broker.kill()

    def start(self) -> None:
        """A new one in the place of one that was killed."""
        self._replace()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.broker.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.broker.process.send_signal(signal.SIGCONT)

    def look(self) -> None:
        """Notes that it ended by itself, and the errors in its log."""
        if self.broker.process.poll() is not None:
            self.wrong.append(f"broker {self.number} ended by itself: {self.broker.process.returncode}")
        self.wrong += [f"broker {self.number}: {line}" for line in self.broker.lines if "[error" in line]

    def close(self) -> None:
        self.thaw()
        self.broker.close()

    def _replace(self) -> None:
        self.broker.close()
        self.wrong += [f"broker {self.number}: {line}" for line in self.broker.lines if "[error" in line]
        self.broker = self._started(self.endpoint)

    def _started(self, listen: str) -> BrokerProcess:
        started = BrokerProcess(self._database, listen=listen, broker_id=f"broker-{self.number}", **SETTINGS)
        with Client(started.endpoint) as client:
            client.topics()  # It serves.
        return started
