"""Where faults happen: a database, a broker that stays, and brokers behind proxies that are broken on purpose."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from faults.client import Client
from faults.mysql_proxy import MySqlProxy
from faults.operations import SETTINGS, When
from support.brokers import START_SECONDS, BrokerProcess
from support.databases import Kind, create_database, drop_database, server_url

if TYPE_CHECKING:
    from types import TracebackType


def rounds(usual: int) -> int:
    """How often a fault is repeated: HALFMQ_FAULT_ROUNDS, or as often as CI has time for."""
    return int(os.environ.get("HALFMQ_FAULT_ROUNDS") or usual)


def killed_at_commit(database: str, *, matching: str, when: When, **settings: object) -> None:
    """Starts a broker and has it die at a COMMIT of something that it does by itself."""
    brokers: list[BrokerProcess] = []
    serves = threading.Event()

    def kill() -> None:
        serves.wait(START_SECONDS)
        brokers[0].kill()

    with MySqlProxy.to(database) as proxy:
        rule = proxy.on_commit(matching=matching, when=when, action=kill)
        with BrokerProcess(proxy.url(database), **settings) as broker:
            brokers.append(broker)
            serves.set()
            rule.wait(START_SECONDS)


class Proxied:
    """A broker whose database connections pass through a proxy of its own, and a client of it."""

    def __init__(self, database: str, **settings: object) -> None:
        self.database = database
        self.proxy = MySqlProxy.to(database).__enter__()
        try:
            self.broker = BrokerProcess(self.proxy.url(database), **{**SETTINGS, **settings})
        except BaseException:
            self.proxy.close()
            raise
        self.client = Client(self.broker.endpoint)

    def close(self) -> None:
        self.client.close()
        self.proxy.clear()
        self.broker.close()
        self.proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Site:
    """A database with a broker that nothing is done to; brokers to kill are started ahead of need."""

    def __init__(self, kind: Kind) -> None:
        self.database = create_database(server_url(kind))
        self.broker = BrokerProcess(self.database, **SETTINGS)
        self.client = Client(self.broker.endpoint)
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="victims")
        self._spare: Future[Proxied] | None = None

    def victim(self) -> Proxied:
        """A broker to be killed. While it is used, the next one starts."""
        ready = self._spare or self._starter.submit(Proxied, self.database)
        self._spare = self._starter.submit(Proxied, self.database)
        return ready.result()

    def close(self) -> None:
        if self._spare is not None:
            self._spare.result().close()
        self._starter.shutdown()
        self.client.close()
        self.broker.close()
        drop_database(self.database)
