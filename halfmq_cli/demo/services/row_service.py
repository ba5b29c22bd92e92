"""The service that sends the user's rows: each group of rows is one local transaction and one halfmq transaction.

A new process continues where the previous one stopped: it sends the rows missing in the table, in as many passes as
needed. A row cannot be written twice, its number is the table's key.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.storage.engine.dialects import failure_of
from broker.storage.engine.failures import Failure
from halfmq_cli.demo import stage
from halfmq_cli.demo.row_source import SourceRow, in_groups, read
from halfmq_cli.demo.tables import SENT_ROWS, Book
from producer_sdk import (
    AsyncTransactionProducer,
    HalfMessages,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionRefused,
    VerdictUnconfirmed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS_IN_FLIGHT = 8192
MOST_IN_FLIGHT = 512
# SQLite has one writer at a time; more would only wait for each other, and be checked meanwhile.
MOST_IN_FLIGHT_EMBEDDED = 64
FEWEST_IN_FLIGHT = 16


class RowListener(TransactionListener):
    """Writes rows, and answers checks for rows that it or its predecessor wrote."""

    def __init__(self, book: Book, rows_to_live: int | None) -> None:
        """Takes the tables, and the number of rows after which this process dies; None: it does not."""
        self._book = book
        self._rows_to_live = rows_to_live
        self._written = 0
        self._lock = threading.Lock()

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Writes the rows of one transaction."""
        rows: Sequence[SourceRow] = arg
        try:
            self._book.fence.execute_local_transaction(
                messages, lambda connection: self._book.write_on(connection, [(row.number, row.body) for row in rows])
            )
        except Exception as error:
            if failure_of(error) is Failure.DUPLICATE:
                # A row exists already: the previous process committed it after the query.
                return LocalTransactionState.ROLLBACK
            raise
        with self._lock:
            self._written += len(rows)
            if self._rows_to_live is not None and self._written >= self._rows_to_live:
                stage.die()
        stage.say("written", rows=len(rows))
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Has the fence look the transaction up."""
        return self._book.fence.check_local_transaction(messages)


class RowSender:
    """Sends the rows of a file, many transactions at a time."""

    def __init__(self, producer: AsyncTransactionProducer, book: Book, settings: dict[str, Any]) -> None:
        """Takes the producer, the tables, and the rows."""
        self._producer = producer
        self._book = book
        self._path = Path(settings["input"])
        self._topic, self._tag = settings["topic"], settings["tag"]
        self._group_size = settings["rows_per_transaction"]
        self._total = settings["rows"]

    async def send_all(self) -> None:
        """Sends until the table has every row."""
        while len(present := await asyncio.to_thread(self._book.numbers)) < self._total:
            await self._send_missing(present)

    async def _send_missing(self, present: set[int]) -> None:
        most = MOST_IN_FLIGHT_EMBEDDED if self._book.database.dialect.one_writer else MOST_IN_FLIGHT
        slots = asyncio.Semaphore(max(FEWEST_IN_FLIGHT, min(most, ROWS_IN_FLIGHT // self._group_size)))
        missing = (row for row in read(self._path) if row.number not in present)
        async with asyncio.TaskGroup() as sending:
            for rows in in_groups(missing, self._group_size):
                await slots.acquire()
                sending.create_task(self._send(rows)).add_done_callback(lambda _: slots.release())

    async def _send(self, rows: Sequence[SourceRow]) -> None:
        messages = [Message(self._topic, row.body, tag=self._tag, keys=(str(row.number),)) for row in rows]
        try:
            await self._producer.send_in_transaction(messages, rows)
        except (VerdictUnconfirmed, TransactionRefused) as error:
            # A check settles the transaction; if the rows were not written, the next pass sends them.
            stage.say("left to a check", error=str(error))


async def run(settings: dict[str, Any]) -> None:
    """Runs one process of the service."""
    book = Book(settings["database"], settings["prefix"], SENT_ROWS)
    listener = RowListener(book, settings["rows_to_live"])
    threads = 1 if book.database.dialect.one_writer else 8
    async with AsyncTransactionProducer(
        settings["endpoint"],
        settings["group"],
        listener,
        client_id=settings["client_id"],
        listener_concurrency=threads,
    ) as producer:
        await producer.wait_until_registered(30)
        await RowSender(producer, book, settings).send_all()
        stage.say("finished")
        await asyncio.to_thread(stage.wait_for_end)
    book.close()


if __name__ == "__main__":
    asyncio.run(run(stage.settings()))
