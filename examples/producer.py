"""Places an order and tells about it: both happen, or neither. Usage: producer.py ENDPOINT ORDER [DATABASE]."""

import sys

import sqlalchemy
from sqlalchemy.exc import IntegrityError

from producer_sdk import HalfMessages, LocalTransactionState, Message, TransactionListener, TransactionProducer

NOTE = sqlalchemy.text("INSERT INTO local_transactions (transaction_id, status) VALUES (:id, :status)")
FIND = sqlalchemy.text("SELECT status FROM local_transactions WHERE transaction_id = :id")


class Orders(TransactionListener):
    """The local transaction, and how to find out later what became of it."""

    def __init__(self, url: str) -> None:
        """Makes the tables. A check does not wait long for a local transaction that still runs: it will come again."""
        server = not url.startswith("sqlite")
        patience = {"init_command": "SET innodb_lock_wait_timeout = 2"} if server else {"timeout": 2}
        self.shop = sqlalchemy.create_engine(url)
        self.checking = sqlalchemy.create_engine(url, connect_args=patience)
        tables = (
            "orders (content VARCHAR(200) NOT NULL)",
            "local_transactions (transaction_id CHAR(36) PRIMARY KEY, status CHAR(7) NOT NULL)",
        )
        with self.shop.begin() as database:
            for table in tables:
                database.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {table}{' ENGINE=InnoDB' * server}")

    def execute_local_transaction(self, messages: HalfMessages, order: str) -> LocalTransactionState:
        """Writes the order, and in the same transaction that it is done."""
        with self.shop.begin() as database:
            database.execute(NOTE, {"id": messages.transaction_id, "status": "done"})
            database.execute(sqlalchemy.text("INSERT INTO orders (content) VALUES (:order)"), {"order": order})
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Refuses the transaction for good if its key is free; otherwise looks whose it is. An exception is UNKNOWN."""
        own = {"id": messages.transaction_id}
        try:
            with self.checking.begin() as database:
                database.execute(NOTE, {**own, "status": "refused"})
        except IntegrityError:
            with self.checking.begin() as database:
                done = database.execute(FIND, own).scalar_one() == "done"
            return LocalTransactionState.COMMIT if done else LocalTransactionState.ROLLBACK
        return LocalTransactionState.ROLLBACK


if __name__ == "__main__":
    endpoint, order, *database_url = sys.argv[1:]
    orders = Orders(*database_url or ["sqlite:///shop.db"])
    with TransactionProducer(endpoint, "shop", orders) as producer:
        print(producer.send_in_transaction(Message("orders", order), arg=order).state.name)
