"""An order service: the order in its database and its message both happen, or neither does.

    python examples/order_service.py                    with an in-process broker
    python examples/order_service.py localhost:8085     with a running one: halfmq serve --auto-create

Three orders are placed. The first one is paid for; the second is refused by the payment; with the third the service
does not send the verdict, as if it had crashed after its local commit, and the broker checks it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.exc import IntegrityError

from consumer_sdk import Consumer
from producer_sdk import HalfMessages, LocalTransactionState, TransactionListener, TransactionProducer
from producer_sdk.testing import embedded_broker

TABLES = (
    "orders (number INTEGER PRIMARY KEY, item VARCHAR(40) NOT NULL)",
    "local_transactions (transaction_id CHAR(36) PRIMARY KEY, status CHAR(7) NOT NULL)",
)
ORDER = sqlalchemy.text("INSERT INTO orders (number, item) VALUES (:number, :item)")
NOTE = sqlalchemy.text("INSERT INTO local_transactions (transaction_id, status) VALUES (:id, :status)")
FIND = sqlalchemy.text("SELECT status FROM local_transactions WHERE transaction_id = :id")


class PaymentRefused(Exception):
    """The customer cannot pay."""


class Orders(TransactionListener):
    """The service's database, and its answers to the broker's checks."""

    def __init__(self, url: str) -> None:
        """Creates the tables, on MySQL, MariaDB or SQLite.

        Checks use their own connections with a short lock timeout: when a local transaction is still running, the
        broker will check again.
        """
        server = not url.startswith("sqlite")
        patience = {"init_command": "SET innodb_lock_wait_timeout = 2"} if server else {"timeout": 2}
        self.database = sqlalchemy.create_engine(url)
        self.checking = sqlalchemy.create_engine(url, connect_args=patience)
        with self.database.begin() as connection:
            for table in TABLES:
                connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {table}{' ENGINE=InnoDB' * server}")

    def write(self, connection: sqlalchemy.Connection, number: int, item: str, transaction_id: str) -> None:
        """Records the transaction and writes its order. Fails if a check has refused the transaction before."""
        connection.execute(NOTE, {"id": transaction_id, "status": "done"})
        connection.execute(ORDER, {"number": number, "item": item})

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Not used: the local transaction runs inside `with producer.transaction()`."""
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Inserts the transaction's key, so that it can no longer commit; if the key exists, reads its status.

        While the local transaction runs, the key is locked: this raises an exception, which counts as UNKNOWN.
        """
        own = {"id": messages.transaction_id}
        try:
            with self.checking.begin() as connection:
                connection.execute(NOTE, {**own, "status": "refused"})
        except IntegrityError:
            # In a separate transaction, which sees everything committed so far.
            with self.checking.begin() as connection:
                status = connection.execute(FIND, own).scalar_one()
            if status != "done":
                return LocalTransactionState.ROLLBACK
            print(f"check: {json.loads(messages[0].text)['item']} was committed here")
            return LocalTransactionState.COMMIT
        return LocalTransactionState.ROLLBACK

    def close(self) -> None:
        """Closes the connections."""
        self.database.dispose()
        self.checking.dispose()


def place_orders(producer: TransactionProducer, orders: Orders) -> None:
    """Places three orders with three different outcomes."""
    with producer.transaction() as tx:
        tx.send("orders", json.dumps({"number": 1, "item": "lamp"}))
        with orders.database.begin() as connection:
            orders.write(connection, 1, "lamp", tx.transaction_id)
    print("lamp: committed here and at the broker")

    try:
        with producer.transaction() as tx:
            tx.send("orders", json.dumps({"number": 2, "item": "yacht"}))
            with orders.database.begin() as connection:
                orders.write(connection, 2, "yacht", tx.transaction_id)
                raise PaymentRefused("a yacht is too much")
    except PaymentRefused as reason:
        print(f"yacht: rolled back here and at the broker ({reason})")

    tx = producer.transaction()
    tx.send("orders", json.dumps({"number": 3, "item": "chair"}))
    with orders.database.begin() as connection:
        orders.write(connection, 3, "chair", tx.transaction_id)
    print("chair: committed here, the broker does not know")


def main() -> None:
    """Places the orders and receives the messages that become visible."""
    with contextlib.ExitStack() as stack:
        endpoint = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(embedded_broker(first_check=2.0)).endpoint
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        orders = stack.enter_context(contextlib.closing(Orders(f"sqlite:///{folder / 'orders.db'}")))
        producer = stack.enter_context(TransactionProducer(endpoint, "order-service", orders))
        place_orders(producer, orders)
        with Consumer(endpoint, "shipping", "orders") as consumer:
            for _ in range(2):
                message = next(consumer)
                print(f"received: {json.loads(message.text)['item']}")
                message.ack()


if __name__ == "__main__":
    main()
