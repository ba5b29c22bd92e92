"""An order service: an order in its database and its message happen both, or neither.

    python examples/order_service.py                    with a broker inside this process
    python examples/order_service.py localhost:8085     with a running one: halfmq serve --auto-create

Three orders are placed. The first one is paid for; the second is refused by the payment; with the third the service
"forgets" the verdict, as if it had crashed after its local commit, and is asked by the broker.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from consumer_sdk import Consumer
from producer_sdk import HalfMessages, LocalTransactionState, TransactionListener, TransactionProducer
from producer_sdk.testing import embedded_broker

TABLES = """
CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL, transaction_id TEXT NOT NULL UNIQUE);
CREATE TABLE given_up (transaction_id TEXT PRIMARY KEY);
"""


class PaymentRefused(Exception):
    """The customer cannot pay."""


class Orders(TransactionListener):
    """The service's own database, and its answers to the broker's checks."""

    def __init__(self, path: Path) -> None:
        """Makes the tables."""
        self._path = path
        with self.transaction() as database:
            for statement in TABLES.strip().split(";\n"):
                database.execute(statement)

    @contextlib.contextmanager
    def transaction(self) -> Any:
        """A local transaction; listeners are called in several threads, so each has a connection of its own."""
        database = sqlite3.connect(self._path, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        finally:
            database.close()

    def write(self, database: sqlite3.Connection, number: int, item: str, transaction_id: str) -> None:
        """Writes an order, unless a check has been told that its transaction will never happen."""
        if database.execute("SELECT 1 FROM given_up WHERE transaction_id = ?", (transaction_id,)).fetchone():
            raise RuntimeError("too late: the broker asked, and was told that this order is not")
        database.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, item, transaction_id))

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Is not used here: the local transaction is run inside `with producer.transaction()`."""
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Looks into the table. "Not there" must stay true from now on, so it is written down."""
        key = (messages.transaction_id,)
        with self.transaction() as database:
            if database.execute("SELECT 1 FROM orders WHERE transaction_id = ?", key).fetchone():
                print(f"check: {json.loads(messages[0].text)['item']} was committed here")
                return LocalTransactionState.COMMIT
            database.execute("INSERT OR IGNORE INTO given_up VALUES (?)", key)
            return LocalTransactionState.ROLLBACK


def place_orders(producer: TransactionProducer, orders: Orders) -> None:
    """Places three orders, each of which ends in another way."""
    with producer.transaction() as tx:
        tx.send("orders", json.dumps({"number": 1, "item": "lamp"}))
        with orders.transaction() as database:
            orders.write(database, 1, "lamp", tx.transaction_id)
    print("lamp: committed here and at the broker")

    try:
        with producer.transaction() as tx:
            tx.send("orders", json.dumps({"number": 2, "item": "yacht"}))
            with orders.transaction() as database:
                orders.write(database, 2, "yacht", tx.transaction_id)
                raise PaymentRefused("a yacht is too much")
    except PaymentRefused as reason:
        print(f"yacht: rolled back here and at the broker ({reason})")

    tx = producer.transaction()
    tx.send("orders", json.dumps({"number": 3, "item": "chair"}))
    with orders.transaction() as database:
        orders.write(database, 3, "chair", tx.transaction_id)
    print("chair: committed here, the broker does not know")


def main() -> None:
    """Places the orders and receives what consumers may see of them."""
    with contextlib.ExitStack() as stack:
        endpoint = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(embedded_broker(first_check=2.0)).endpoint
        orders = Orders(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "orders.db")
        producer = stack.enter_context(TransactionProducer(endpoint, "order-service", orders))
        place_orders(producer, orders)
        with Consumer(endpoint, "shipping", "orders") as consumer:
            for _ in range(2):
                message = next(consumer)
                print(f"received: {json.loads(message.text)['item']}")
                message.ack()


if __name__ == "__main__":
    main()
