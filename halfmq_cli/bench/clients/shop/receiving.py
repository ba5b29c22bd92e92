"""The ways of those who receive, for the shop of `halfmq bench ways`."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from client_core.ids import new_id
from consumer_sdk.applied import AppliedMessages, by_property
from halfmq_cli.bench.clients.shop.orders import INSERT, INSERT_RECONCILED, RECONCILED, send_after_commit
from halfmq_cli.bench.clients.shop.workers import Workers
from halfmq_cli.bench.load import APPLIED_TOPIC, GROUP, INPUT_TOPIC, QUEUE_TOPIC, RECONCILED_TOPIC, TOPIC
from halfmq_connect.reconciliation import BusinessTable, Finding, Reconciliation, ReconciliationSettings
from producer_sdk import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from consumer_sdk import ReceivedMessage
    from producer_sdk import Producer

GRACE = 5.0
"""Seconds after which an order must have its message; longer than any takes here."""
EVERY = 1.0


class ReceivingWays:
    """A queue without and with marks of what was applied, forwarding, and reconciliation."""

    def __init__(
        self, endpoint: str, engine: sa.Engine, producer: Producer, body: Callable[[], bytes], threads: int
    ) -> None:
        """Creates the tables, and starts the workers: so many for each way that has some."""
        self._engine = engine
        self._body = body
        self._opened = contextlib.ExitStack()
        self._producer = producer
        applied = AppliedMessages(engine, GROUP, key=by_property("order"))
        applied.create_tables()
        handlers: dict[str, tuple[str, Callable[[ReceivedMessage], object]]] = {
            "queue": (QUEUE_TOPIC, self._insert),
            "queue, applied": (APPLIED_TOPIC, applied.handler(self._insert_in)),
            "forwarded": (INPUT_TOPIC, self._forward),
        }
        self._workers: dict[str, Workers] = {}
        for way, (topic, handle) in handlers.items():
            self._workers[way] = Workers(endpoint, topic, handle, threads)
            self._opened.callback(self._workers[way].close)
        self._findings: list[Finding] = []
        self._reconciliation = Reconciliation(
            engine,
            BusinessTable(RECONCILED, key="number", time="made_us", time_unit="us"),
            endpoint,
            RECONCILED_TOPIC,
            make=lambda row: Message(RECONCILED_TOPIC, b"", keys=[row.key]),
            on_finding=self._findings.append,
            settings=ReconciliationSettings(grace=GRACE, every=EVERY),
        )
        self._reconciliation.create_tables()
        self.ways: dict[str, Callable[[], None]] = {
            "queue": self.queued,
            "queue, applied": self.applied,
            "forwarded": self.forwarded,
            "reconciled": self.reconciled,
        }

    def queued(self) -> None:
        """Nothing but a message: a worker writes the order; twice where it dies before its ack."""
        self._producer.send(QUEUE_TOPIC, self._body())

    def applied(self) -> None:
        """The same; a worker writes the order once, with a mark."""
        self._producer.send(APPLIED_TOPIC, self._body(), properties={"order": new_id()})

    def forwarded(self) -> None:
        """Sent after the commit; a worker sends the message on, which is one step with its ack."""
        send_after_commit(self._engine, self._producer, INPUT_TOPIC, self._body())

    def reconciled(self) -> None:
        """Sent after the commit; what is lost there is found later."""
        body = self._body()
        with self._engine.begin() as connection:
            values = {"body": body, "made_us": time.time_ns() // 1000}
            (number,) = connection.execute(INSERT_RECONCILED, values).inserted_primary_key or (None,)
        self._producer.send(RECONCILED_TOPIC, body, keys=[str(number)])

    def workers(self, way: str) -> Workers | None:
        """Those who receive the orders of a way; None: it has none here."""
        return self._workers.get(way)

    @contextlib.contextmanager
    def beside(self, way: str, failures: list[str]) -> Iterator[None]:
        """What runs beside the orders of a way; adds what it found to be wrong."""
        if way != "reconciled":
            yield
            return
        with self._reconciliation.running():
            yield
        failures += [repr(each) for each in self._findings]

    def close(self) -> None:
        """Ends the workers."""
        self._opened.close()

    def _insert(self, message: ReceivedMessage) -> None:
        with self._engine.begin() as connection:
            connection.execute(INSERT, {"body": message.body})

    def _insert_in(self, message: ReceivedMessage, connection: sa.Connection) -> None:
        connection.execute(INSERT, {"body": message.body})

    def _forward(self, message: ReceivedMessage) -> None:
        self._producer.send_and_ack(Message(TOPIC, message.body), message)
