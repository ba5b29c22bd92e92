"""A history of transactions that real producers and operators made, with every kind of end there is."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc

from halfmq.v1 import admin_pb2, admin_pb2_grpc
from producer_sdk import Admin, LocalTransactionState, Message, Producer, TransactionListener, TransactionProducer
from support.brokers import BrokerProcess
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producer_sdk import HalfMessages

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
CHECKS = {"first_check": 0.2, "check_interval": 0.8, "max_checks": 3}
TOPIC = "orders"
DEADLINE = 60.0


class _Answering(TransactionListener):
    """Gives verdicts that depend on the number of the transaction, which is its body."""

    def __init__(
        self, at_once: Callable[[int], LocalTransactionState], to_checks: Callable[[int, int], LocalTransactionState]
    ) -> None:
        self._at_once = at_once
        self._to_checks = to_checks

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        return self._at_once(int(messages.messages[0].body))

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        return self._to_checks(int(messages.messages[0].body), messages.check_number)


class Tables:
    """The tables of a broker's database, read with plain SQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query, by the names of its columns."""
        if self._url.startswith("sqlite"):
            import sqlite3
            from contextlib import closing

            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as file:
                found = file.execute(query)
                names = [each[0] for each in found.description]
                return [dict(zip(names, row, strict=True)) for row in found]
        with connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            names = [each[0] for each in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def count(self, table_and_condition: str) -> int:
        """How many rows there are."""
        return int(self.rows(f"SELECT COUNT(*) AS n FROM {table_and_condition}")[0]["n"])

    def await_count(self, table_and_condition: str, count: int) -> None:
        """Waits until there are so many."""
        until = time.monotonic() + DEADLINE
        while (found := self.count(table_and_condition)) != count:
            assert time.monotonic() < until, f"{found} instead of {count}: {table_and_condition}"
            time.sleep(0.05)


def make_history(url: str, also: Callable[[str], None]) -> Tables:
    """Runs a broker and producers on a database; when this ends, nothing changes in it any more.

    Args:
        url: An empty database.
        also: What to do besides, with the broker's endpoint.
    """
    tables, let_go = Tables(url), threading.Event()
    with BrokerProcess(url, **CHECKS) as broker, ExitStack() as stack:
        with Admin(broker.endpoint) as admin:
            admin.create_topic(TOPIC)

        def producer(group: str, listener: TransactionListener | None) -> TransactionProducer:
            made = TransactionProducer(broker.endpoint, group, listener, close_grace=0.1)
            return stack.enter_context(made)

        # Checks of the group slow stay unanswered until nobody looks any more.
        stack.callback(let_go.set)
        _decide_at_once(producer("shop", _Answering(lambda n: ROLLBACK if n % 7 == 0 else COMMIT, _never)))
        slow = producer(
            "slow", _Answering(lambda _: UNKNOWN, lambda *_: UNKNOWN if let_go.wait(DEADLINE) else ROLLBACK)
        )
        left = [slow.prepare(Message(TOPIC, f"{number}")).transaction_id for number in range(6)]
        tables.await_count(
            "transaction_check c JOIN half_message h ON h.transaction_id = c.transaction_id AND h.position = 0"
            " JOIN producer_group g ON g.producer_group_id = h.producer_group_id"
            " WHERE g.name = 'slow' AND c.check_number = 1",
            6,
        )
        for own in left[:3]:
            slow.commit(own)
        asked = producer("till", _Answering(lambda _: UNKNOWN, _answer_of_till))
        for number in range(60):
            asked.send_in_transaction([Message(TOPIC, f"{number}") for _ in range(1 + number % 3)])
        lost = producer("lost", _Answering(lambda _: UNKNOWN, lambda *_: UNKNOWN))
        parked = [lost.send_in_transaction(Message(TOPIC, f"{n}")).transaction_id for n in range(12)]
        # Without a listener nobody registers for checks, so none is sent.
        silent = producer("silent", None)
        for number in range(5):
            silent.prepare([Message(TOPIC, f"{number}"), Message(TOPIC, "another")])
        with Producer(broker.endpoint) as plain:
            plain.send_many([Message(TOPIC, f"{number}") for number in range(20)])
        also(broker.endpoint)
        tables.await_count("half_message WHERE check_state = 3", 15)
        _resolve(broker.endpoint, parked)
        # One is asked again from now on, and will be until the broker stops.
        tables.await_count("transaction_check WHERE check_number = 4 AND answered_at IS NOT NULL", 1)
        tables.await_count("op_record WHERE source IN (1, 2, 3)", 140 + 3 + 60 + 7)
        tables.await_count("half_message WHERE check_state = 3", 3 + 4)
    return tables


def _never(number: int, check: int) -> LocalTransactionState:
    raise AssertionError(f"transaction {number} was checked")


def _answer_of_till(number: int, check: int) -> LocalTransactionState:
    """Some know at once, some say UNKNOWN first, some raise, which counts as UNKNOWN."""
    if number % 4 == 3 and check == 1:
        raise ZeroDivisionError("the database is away")
    if number % 4 == 2 and check < 3:
        return UNKNOWN
    return ROLLBACK if number % 5 == 0 else COMMIT


def _decide_at_once(shop: TransactionProducer) -> None:
    for number in range(140):
        shop.send_in_transaction([Message(TOPIC, f"{number}"), Message(TOPIC, "and this")][: 1 + number % 2])


def _resolve(endpoint: str, parked: Sequence[str]) -> None:
    with grpc.insecure_channel(endpoint) as channel:
        operators = admin_pb2_grpc.AdminServiceStub(channel)
        for number, transaction_id in enumerate(parked[:8]):
            resolution = (
                admin_pb2.RESOLUTION_CHECK_AGAIN
                if number == 7
                else (admin_pb2.RESOLUTION_COMMIT, admin_pb2.RESOLUTION_ROLLBACK)[number % 2]
            )
            operators.ResolveTransaction(
                admin_pb2.ResolveTransactionRequest(
                    transaction_id=transaction_id,
                    resolution=resolution,
                    reason=f"looked at <order> {number}",
                    operator="anna & ben",
                ),
                timeout=30,
            )
