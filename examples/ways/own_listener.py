"""Places an order with a listener of its own. Usage: own_listener.py ENDPOINT ORDER [DATABASE]."""

import sys

import sqlalchemy
from sqlalchemy.exc import IntegrityError

from producer_sdk import HalfMessages, LocalTransactionState, Message, TransactionListener, TransactionProducer

NOTE = sqlalchemy.text("INSERT INTO local_transactions (transaction_id, status) VALUES (:id, :status)")
FIND = sqlalchemy.text("SELECT status FROM local_transactions WHERE transaction_id = :id")


class Orders(TransactionListener):
    """The local transaction, and the check that finds out its outcome later."""

    def __init__(self, url: str) -> None:
        """Creates the tables. A check waits 2 s at most for a running local transaction; the broker checks again."""
        server = not url.startswith("sqlite")
        patience = {"init_command": "SET innodb_lock_wait_timeout = 2"} if server else {"timeout": 2}
        self.shop, self.checking = sqlalchemy.create_engine(url), sqlalchemy.create_engine(url, connect_args=patience)
        outcomes = "local_transactions (transaction_id CHAR(36) PRIMARY KEY, status CHAR(7) NOT NULL)"
        with self.shop.begin() as database:
            for table in ("orders (content VARCHAR(200) NOT NULL)", outcomes):
                database.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {table}{' ENGINE=InnoDB' * server}")

    def execute_local_transaction(self, messages: HalfMessages, order: str) -> LocalTransactionState:
        """Writes the order and, in the same transaction, the transaction's id with status done."""
        with self.shop.begin() as database:
            database.execute(NOTE, {"id": messages.transaction_id, "status": "done"})
            database.execute(sqlalchemy.text("INSERT INTO orders (content) VALUES (:order)"), {"order": order})
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Claims the key to block the transaction for good; if taken, reads the status. An exception is UNKNOWN."""
        try:
            with self.checking.begin() as database:
                database.execute(NOTE, {"id": messages.transaction_id, "status": "refused"})
        except IntegrityError:
            with self.checking.begin() as database:
                done = database.execute(FIND, {"id": messages.transaction_id}).scalar_one() == "done"
            return LocalTransactionState.COMMIT if done else LocalTransactionState.ROLLBACK
        return LocalTransactionState.ROLLBACK


if __name__ == "__main__":
    endpoint, order, *database_url = sys.argv[1:] or sys.exit(__doc__)
    orders = Orders(*database_url or ["sqlite:///shop.db"])
    with TransactionProducer(endpoint, "shop", orders) as producer:
        print(producer.send_in_transaction(Message("orders", order), arg=order).state.name)
