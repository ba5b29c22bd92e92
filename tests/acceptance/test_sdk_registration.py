"""When a producer begins to answer checks: at its construction, before its first call."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from acceptance.client import PREPARED, Client
from producer_sdk import HalfMessages, LocalTransactionState, TransactionListener, TransactionProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess


class Asked(TransactionListener):
    """Tells when it is asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.transactions: list[str] = []

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.transactions.append(messages.transaction_id)
        self.asked.set()
        return LocalTransactionState.COMMIT


async def test_a_producer_answers_checks_before_its_first_call(new_broker: Callable[..., BrokerProcess]) -> None:
    endpoint = new_broker("sqlite", auto_create=True, first_check=0.1, check_interval=0.1).endpoint
    async with Client(endpoint) as client:
        (one,) = await client.prepare("shop", "orders", ["of a process that died"])
        assert (await client.transaction(one)).state == PREPARED
        listener = Asked()
        producer = TransactionProducer(endpoint, "shop", listener)
        try:
            assert await asyncio.to_thread(listener.asked.wait, 60)
        finally:
            await asyncio.to_thread(producer.close)
        assert set(listener.transactions) == {one}


def test_no_broker_need_be_there_yet() -> None:
    producer = TransactionProducer("127.0.0.1:1", "shop", Asked())
    producer.close()
