"""The order service: a process that writes orders and sends them as half messages.

Its role comes with its settings: orders to place, orders to leave in doubt before being killed, orders whose outcome it
never learns. Afterwards it keeps running, and answers the broker's checks from its tables.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from halfmq_cli.demo import stage
from halfmq_cli.demo.plan import Fate, Order
from halfmq_cli.demo.tables import ORDERS, Book, Row, connection_of
from producer_sdk import (
    HalfMessages,
    LocalTransactionState,
    Message,
    Transaction,
    TransactionListener,
    TransactionProducer,
)
from producer_sdk.fence import TransactionFence

THREADS = 8
IN_DOUBT = frozenset({Fate.CRASH_AFTER, Fate.CRASH_BEFORE, Fate.GONE})


class PaymentRefused(Exception):
    """The customer cannot pay: the order must not be stored."""


class NeverKnows(TransactionListener):
    """Waits for a payment provider that never answers."""

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Leaves the verdict to a check."""
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Returns UNKNOWN."""
        return LocalTransactionState.UNKNOWN


class DiesBeforeItAnswers(TransactionFence):
    """The fence of a process that is about to be killed: on a slow machine a check may come before that."""

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Does not return."""
        threading.Event().wait()
        return LocalTransactionState.UNKNOWN


@dataclass
class OrderService:
    """Places orders: each in a local transaction, and as a message that commits with it."""

    producer: TransactionProducer
    book: Book
    topic: str
    tag: str

    def place(self, order: Order) -> None:
        """Writes an order and sends it: both happen, or neither does."""
        with (
            self.book.session() as session,
            suppress(PaymentRefused),
            self.producer.transaction(connection_of(session)) as tx,
        ):
            self._send(tx, order)
            self.book.write(session, [order.row])
            if order.fate is Fate.ROLLBACK:
                raise PaymentRefused(f"{order.customer} cannot pay {order.cents / 100:.2f}")

    def _send(self, tx: Transaction, order: Order) -> None:
        tx.send(self.topic, body_of(order), tag=self.tag, keys=[str(order.number)])
        stage.say("prepared", order=order.number, transaction_id=tx.transaction_id)

    def leave_in_doubt(self, order: Order) -> None:
        """Does the same up to a point, and does not come to the end of the block."""
        with self.book.session() as session:
            connection = connection_of(session)
            tx = self.producer.transaction(connection)
            tx.__enter__()
            self._send(tx, order)
            if order.fate is not Fate.CRASH_BEFORE:
                self.book.write(session, [order.row])
                session.commit()
            else:
                session.rollback()

    def ask_payment_provider(self, order: Order) -> None:
        """Sends an order whose payment stays unknown."""
        message = Message(self.topic, body_of(order), tag=self.tag, keys=[str(order.number)])
        sent = self.producer.send_in_transaction(message)
        stage.say("prepared", order=order.number, transaction_id=sent.transaction_id)


def order_of(row: Row, fate: str) -> Order:
    """An order, from the settings."""
    number, customer, item, cents = row
    return Order(number, customer, item, cents, Fate(fate))


def body_of(order: Order) -> str:
    """The order as a message."""
    return json.dumps(dict(zip(ORDERS.names.split(", "), order.row, strict=True)))


def main() -> None:
    """Runs one process of the service."""
    settings = stage.settings()
    orders = [order_of(row, fate) for row, fate in settings["orders"]]
    # First the successful ones, so that the kill leaves only the intended ones in doubt.
    doubtful = [order for order in orders if order.fate in IN_DOUBT]
    book = Book(settings["database"], settings["prefix"], ORDERS, DiesBeforeItAnswers if doubtful else TransactionFence)
    # Answers checks from the business tables, whichever process wrote them.
    listener = NeverKnows() if settings["never_knows"] else book.fence
    with (
        TransactionProducer(
            settings["endpoint"], settings["group"], listener, client_id=settings["client_id"]
        ) as producer,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        service = OrderService(producer, book, settings["topic"], settings["tag"])
        parts = {Fate.COMMIT: service.place, Fate.ROLLBACK: service.place, Fate.UNKNOWN: service.ask_payment_provider}
        for _ in threads.map(lambda order: parts[order.fate](order), [o for o in orders if o.fate in parts]):
            pass
        for _ in threads.map(service.leave_in_doubt, doubtful):
            pass
        if doubtful:
            stage.die()
        stage.say("finished")
        stage.wait_for_end()
    book.close()


if __name__ == "__main__":
    main()
