"""An exception leaves the block of a producer with a listener: the listener tells what became of it."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from producer_sdk import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    HalfMessages,
    LocalTransactionState,
    PrepareUnconfirmed,
    RequestRefused,
    RetryConfig,
    TransactionListener,
    TransactionProducer,
    TransactionState,
    own_check,
)
from unit.producer_sdk.stub_broker import Failure, StubBroker

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a hang takes longer; tests of what takes long set another one."""
    monkeypatch.setattr(own_check, "_PATIENCE", 60.0)


class Shop(AsyncTransactionListener):
    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[HalfMessages] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        raise NotImplementedError

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.asked.append(messages)
        await self.go_on.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "commits", "rollbacks", "state"),
    [
        (COMMIT, 1, 0, TransactionState.COMMITTED),
        (ROLLBACK, 0, 1, TransactionState.ROLLED_BACK),
        (UNKNOWN, 0, 0, None),
        (RuntimeError("no database"), 0, 0, None),
        ("yes", 0, 0, None),
    ],
    ids=str,
)
async def test_its_word_is_the_verdict(
    stub: StubBroker, answer: object, commits: int, rollbacks: int, state: TransactionState | None
) -> None:
    shop = Shop(answer)
    async with AsyncTransactionProducer(stub.endpoint, "g", shop) as producer:
        with pytest.raises(KeyError):
            async with producer.transaction() as tx:
                await tx.send("orders", "one", keys="k")
                await tx.send("orders", "two")
                raise KeyError("local")
    (half,) = shop.asked
    assert (half.transaction_id, half.check_number) == (tx.transaction_id, 0)
    assert [(message.text, message.keys) for message in half] == [("one", ("k",)), ("two", ())]
    assert (len(stub.commits), len(stub.rollbacks)) == (commits, rollbacks)
    assert [request.reason for request in stub.rollbacks] == ["KeyError('local')"] * rollbacks
    assert (tx.result and tx.result.state) is state


async def test_nobody_is_asked_about_nothing(stub: StubBroker) -> None:
    stub.refuse("nowhere", "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    shop = Shop(COMMIT)
    async with AsyncTransactionProducer(stub.endpoint, "g", shop) as producer:
        with pytest.raises(KeyError):
            async with producer.transaction():
                raise KeyError
        with pytest.raises(RequestRefused):
            async with producer.transaction() as tx:
                await tx.send("nowhere", "refused")
        with pytest.raises(KeyError):
            async with producer.transaction() as tx:
                await tx.send("orders", "x")
                await tx.rollback("by word")
                raise KeyError
    assert shop.asked == []
    assert [request.reason for request in stub.rollbacks] == ["by word"]


async def test_it_is_asked_about_what_was_stored(stub: StubBroker) -> None:
    stub.refuse("nowhere", "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    shop = Shop(ROLLBACK)
    async with AsyncTransactionProducer(stub.endpoint, "g", shop) as producer:
        with pytest.raises(RequestRefused):
            async with producer.transaction() as tx:
                await tx.send("orders", "stored")
                await tx.send("nowhere", "refused")
    assert [[message.text for message in half] for half in shop.asked] == [["stored"]]


async def test_it_is_asked_about_what_may_be_stored(stub: StubBroker, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(ROLLBACK)
    async with AsyncTransactionProducer(stub.endpoint, "g", shop, retry=RetryConfig(attempts=1)) as producer:
        await producer.wait_until_registered()
        with pytest.raises(PrepareUnconfirmed):
            async with producer.transaction() as tx:
                stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
                await tx.send("orders", "in doubt")
        assert [[message.text for message in half] for half in shop.asked] == [["in doubt"]]
        assert list(stub.rollbacks[0].transaction_ids) == [tx.transaction_id]
    # The broker never had it: as good as rolled back.
    assert "VERDICT" not in caplog.text


async def test_a_listener_that_takes_long_goes_on_behind_the_block(
    stub: StubBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block may hold what the check waits for."""
    monkeypatch.setattr(own_check, "_PATIENCE", 0.05)
    shop = Shop(COMMIT)
    shop.go_on.clear()
    async with AsyncTransactionProducer(stub.endpoint, "g", shop) as producer:
        with pytest.raises(KeyError):
            async with producer.transaction() as tx:
                await tx.send("orders", "x")
                raise KeyError
        assert (tx.result, stub.commits) == (None, [])
        shop.go_on.set()
        # Closing waits for it.
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED


async def test_closing_does_not_wait_for_ever(stub: StubBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_check, "_PATIENCE", 0.05)
    shop = Shop(COMMIT)
    shop.go_on.clear()
    async with AsyncTransactionProducer(stub.endpoint, "g", shop, close_grace=0.1) as producer:
        with pytest.raises(KeyError):
            async with producer.transaction() as tx:
                await tx.send("orders", "x")
                raise KeyError
    assert (tx.result, stub.commits, stub.rollbacks) == (None, [], [])


async def test_a_cancelled_block_is_settled_too(stub: StubBroker) -> None:
    shop = Shop(COMMIT)
    committing = asyncio.Event()
    async with AsyncTransactionProducer(stub.endpoint, "g", shop) as producer:

        async def block() -> None:
            async with producer.transaction() as tx:
                await tx.send("orders", "x")
                committing.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await committing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(stub.commits) == 1


async def test_the_synchronous_producer_asks_too_and_does_not_hang_on_a_lock_of_its_caller(
    stub: StubBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()

    class Locking(TransactionListener):
        def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
            raise NotImplementedError

        def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
            with lock:
                return COMMIT

    def work() -> None:
        with TransactionProducer(stub.endpoint, "g", Locking()) as producer:
            with pytest.raises(KeyError), producer.transaction() as tx:
                tx.send("orders", "x")
                raise KeyError
            assert tx.result is not None
            assert tx.result.state is TransactionState.COMMITTED
            monkeypatch.setattr(own_check, "_PATIENCE", 0.5)
            with lock, pytest.raises(KeyError), producer.transaction() as tx:
                tx.send("orders", "x")
                raise KeyError
            assert tx.result is None
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED

    await asyncio.to_thread(work)
    assert len(stub.commits) == 2
