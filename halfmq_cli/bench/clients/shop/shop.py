"""The client of `halfmq bench ways`: threads place orders, each way in turns; SQLAlchemy, as in most services."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from halfmq_cli.bench.clients.conversation import answer, next_request
from halfmq_cli.bench.clients.shop.orders import INSERT, INSERT_MESSAGE_ROW, INSERT_WATCHED, ORDERS, send_after_commit
from halfmq_cli.bench.clients.shop.receiving import ReceivingWays
from halfmq_cli.bench.load import GROUP, KAFKA_TOPIC, TOPIC, body_of, marked
from producer_sdk import Message, Producer, TransactionProducer
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence


class Shop:
    """Orders in a database, and the ways in which a message goes with each."""

    def __init__(
        self, endpoint: str, url: str, broker_tables: str, size: int, threads: int, more: Sequence[str]
    ) -> None:
        """Connects, and creates the tables."""
        self._engine = sa.create_engine(url, pool_size=threads + 4, max_overflow=8)
        self._rest = body_of(size)
        self._threads = threads
        self._open = ExitStack()
        self._statements = 0
        self._counted: tuple[Container[int], ...] = ()
        """The threads whose statements are counted."""
        self._counting = threading.Lock()
        sa.event.listen(self._engine, "before_cursor_execute", self._count)
        ORDERS.create_all(self._engine)
        fence, outbox = TransactionFence(self._engine), Outbox(self._engine)
        fence.create_tables()
        outbox.create_tables()
        self._producer = self._open.enter_context(Producer(endpoint))
        self._halved = self._open.enter_context(TransactionProducer(endpoint, f"{GROUP}-half"))
        self._fenced = self._open.enter_context(TransactionProducer(endpoint, GROUP, fence))
        self._boxed = self._open.enter_context(TransactionProducer(endpoint, f"{GROUP}-outbox", outbox))
        self.ways: dict[str, Callable[[], None]] = {
            "bare": self.bare,
            "bare, both rows": self.bare_rows,
            "sent after the commit": self.sent_after,
            "half message, no fence": self.halved,
            "fence": self.fenced,
            "outbox": self.boxed,
        }
        if broker_tables:
            same = Outbox(self._engine, same_server=True, broker_tables=broker_tables)
            self._same = self._open.enter_context(TransactionProducer(endpoint, f"{GROUP}-same", same))
            self._same_outbox = same
            self._submit = sa.text(f"INSERT INTO {broker_tables}submission (topic_name, body) VALUES (:topic, :body)")  # noqa: S608 - as the server names it
            self.ways["same server, plain rows"] = self.submitted
            self.ways["same server, block"] = self.on_the_same_server
            self.ways["same server, put"] = self.put_on_the_same_server
        self._receiving = ReceivingWays(endpoint, self._engine, self._producer, self._body, threads)
        self._open.callback(self._receiving.close)
        self.ways |= self._receiving.ways
        further = {"binlog": self.watched, "fence, to kafka": self.fenced_for_kafka}
        self.ways |= {way: further[way] for way in more}

    def bare(self) -> None:
        """An order, without a message."""
        with self._engine.begin() as connection:
            connection.execute(INSERT, {"body": self._body()})

    def bare_rows(self) -> None:
        """An order, and a row that nobody sends: what any outbox has to write."""
        body = self._body()
        with self._engine.begin() as connection:
            connection.execute(INSERT, {"body": body})
            connection.execute(INSERT_MESSAGE_ROW, {"topic_name": TOPIC, "body": body})

    def sent_after(self) -> None:
        """The message is sent when the order is committed; lost where the process dies in between."""
        send_after_commit(self._engine, self._producer, TOPIC, self._body())

    def halved(self) -> None:
        """A half message that nothing answers a check for: in doubt where the process dies between the two commits."""
        body = self._body()
        with self._engine.connect() as connection, self._halved.transaction() as tx:
            connection.execute(INSERT, {"body": body})
            tx.send(TOPIC, body)
            connection.commit()

    def fenced(self) -> None:
        """A half message, and its row in the fence."""
        self._in(self._fenced)

    def fenced_for_kafka(self) -> None:
        """A half message that a bridge carries on."""
        self._in(self._fenced, KAFKA_TOPIC)

    def watched(self) -> None:
        """An order, whose row is published from the binary log."""
        with self._engine.begin() as connection:
            connection.execute(INSERT_WATCHED, {"body": self._body()})

    def boxed(self) -> None:
        """A row of the outbox, which the relay of this process sends."""
        self._in(self._boxed)

    def on_the_same_server(self) -> None:
        """A row of the broker's own table."""
        self._in(self._same)

    def submitted(self) -> None:
        """The same two rows, without the outbox: what any program can do."""
        body = self._body()
        with self._engine.begin() as connection:
            connection.execute(INSERT, {"body": body})
            connection.execute(self._submit, {"topic": TOPIC, "body": body})

    def put_on_the_same_server(self) -> None:
        """The same in a transaction of the service's own."""
        body = self._body()
        with self._engine.begin() as connection:
            connection.execute(INSERT, {"body": body})
            self._same_outbox.put(connection, Message(TOPIC, body))

    def _in(self, producer: TransactionProducer, topic: str = TOPIC) -> None:
        body = self._body()
        with self._engine.connect() as connection, producer.transaction(connection) as tx:
            connection.execute(INSERT, {"body": body})
            tx.send(topic, body)

    def _body(self) -> bytes:
        return marked(time.monotonic_ns(), self._rest)

    def run(self, way: str, seconds: float) -> dict[str, Any]:
        """Places orders for some time in all threads; how many, and what they took until workers had done them."""
        one = self.ways[way]
        counts: list[int] = []
        failures: list[str] = []

        def loop() -> None:
            count = 0
            try:
                while time.monotonic() < until:
                    one()
                    count += 1
            except Exception as error:
                failures.append(repr(error))
            counts.append(count)

        workers = self._receiving.workers(way)
        with self._receiving.beside(way, failures):
            until = time.monotonic() + seconds
            start, cpu = time.monotonic(), time.process_time()
            threads = [threading.Thread(target=loop) for _ in range(self._threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            latencies = workers.done(sum(counts)) if workers is not None else []
            taken, cpu = time.monotonic() - start, time.process_time() - cpu
        return {
            "orders": sum(counts),
            "seconds": taken,
            "cpu_s": cpu,
            "latency_ms": latencies,
            "failures": failures,
        }

    def statements(self, way: str, orders: int = 20) -> float:
        """Statements on the business database for one order, of its own thread and of its workers; without commits."""
        workers = self._receiving.workers(way)
        self._place(way, 1)
        self._statements = 0
        self._counted = ({threading.get_ident()}, () if workers is None else workers)
        self._place(way, orders)
        self._counted = ()
        return self._statements / orders

    def _place(self, way: str, orders: int) -> None:
        for _ in range(orders):
            self.ways[way]()
        if (workers := self._receiving.workers(way)) is not None:
            workers.done(orders)

    def _count(self, *_: Any) -> None:
        own = threading.get_ident()
        if any(own in each for each in self._counted):
            with self._counting:
                self._statements += 1

    def close(self) -> None:
        """Closes everything."""
        self._open.close()
        self._engine.dispose()


async def place_orders(endpoint: str, **options: Any) -> None:
    """Answers requests: a way and seconds, or a way alone for its statements; "ways" for their names."""
    shop = await asyncio.to_thread(lambda: Shop(endpoint, **options))
    answer("ready")
    while (wanted := await next_request()) is not None:
        if wanted == "ways":
            answer(list(shop.ways))
        elif wanted.get("seconds") is None:
            answer({"statements": await asyncio.to_thread(shop.statements, wanted["way"])})
        else:
            answer(await asyncio.to_thread(shop.run, wanted["way"], wanted["seconds"]))
    await asyncio.to_thread(shop.close)
