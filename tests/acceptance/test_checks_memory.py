"""Many large transactions that are due at once: the broker asks about all of them, and holds some of them at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from producer_sdk import HalfMessages, LocalTransactionState, Message, TransactionListener, TransactionProducer
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess

TRANSACTIONS = 75


class Commits(TransactionListener):
    """Answers COMMIT, and tells when it was asked about all."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.all = threading.Event()

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.seen.add(messages.transaction_id)
        if len(self.seen) == TRANSACTIONS:
            self.all.set()
        return LocalTransactionState.UNKNOWN


def test_checks_of_large_transactions(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite", auto_create=True, first_check=0.1, check_interval=600.0)
    body = b"x" * (4 * MIB - 1024)
    with TransactionProducer(broker.endpoint, "shop") as silent:
        for _ in range(TRANSACTIONS):
            silent.prepare(Message("orders", body))
    forget_peak(broker.process.pid)
    before = resident(broker.process.pid)
    listener = Commits()
    with TransactionProducer(broker.endpoint, "shop", listener):
        assert listener.all.wait(120)
    # All at once were more than 300 MiB.
    assert resident(broker.process.pid, peak=True) - before < 150 * MIB
