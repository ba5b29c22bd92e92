"""Places an order and tells about it: both happen, or neither. Usage: producer.py ENDPOINT ORDER."""

import sqlite3
import sys
from contextlib import closing

from producer_sdk import HalfMessages, LocalTransactionState, Message, TransactionListener, TransactionProducer


class Orders(TransactionListener):
    """The local transaction, and how to find out later what became of it."""

    def execute_local_transaction(self, messages: HalfMessages, order: str) -> LocalTransactionState:
        """Writes the order, with the transaction's id as its key."""
        with closing(sqlite3.connect("shop.db")) as shop, shop:
            shop.execute("INSERT INTO orders VALUES (?, ?)", (messages.transaction_id, order))
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Takes the key if it is free, so that a late local transaction fails; then looks whose it is."""
        with closing(sqlite3.connect("shop.db")) as shop, shop:
            shop.execute("INSERT OR IGNORE INTO orders VALUES (?, NULL)", (messages.transaction_id,))
            query = "SELECT content FROM orders WHERE transaction_id = ?"
            (content,) = shop.execute(query, (messages.transaction_id,)).fetchone()
        return LocalTransactionState.ROLLBACK if content is None else LocalTransactionState.COMMIT


with closing(sqlite3.connect("shop.db")) as shop:
    shop.execute("CREATE TABLE IF NOT EXISTS orders (transaction_id TEXT PRIMARY KEY, content TEXT)")
with TransactionProducer(sys.argv[1], "shop", Orders()) as producer:
    print(producer.send_in_transaction(Message("orders", sys.argv[2]), arg=sys.argv[2]).state.name)
