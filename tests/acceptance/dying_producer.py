"""A producer process that dies by SIGKILL between its local commit and its verdict, or just before the local commit.

Arguments: endpoint, producer group, topic, SQLite file of the shop, body, "after" or "before".
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

from producer_sdk import LocalTransactionState, TransactionListener, TransactionProducer


class NeverAsked(TransactionListener):
    """Its process is gone when the checks come."""

    def execute_local_transaction(self, *_: object) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, *_: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def main() -> None:
    endpoint, group, topic, shop, body, moment = sys.argv[1:]
    orders = sqlite3.connect(shop)
    with TransactionProducer(endpoint, group, NeverAsked(), client_id="doomed") as producer:
        producer.wait_until_registered(30)
        with producer.transaction() as tx:
            tx.send(topic, body)
            print(tx.transaction_id, flush=True)
            orders.execute("INSERT INTO orders (transaction_id, content) VALUES (?, ?)", (tx.transaction_id, body))
            if moment == "after":
                orders.commit()
            os.kill(os.getpid(), signal.SIGKILL)


main()
