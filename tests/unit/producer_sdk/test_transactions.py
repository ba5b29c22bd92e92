from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from producer_sdk import (
    AsyncTransactionProducer,
    Message,
    PrepareUnconfirmed,
    RequestRefused,
    RetryConfig,
    TransactionInfo,
    TransactionProducer,
    TransactionRefused,
    TransactionState,
    VerdictSource,
    VerdictUnconfirmed,
)
from unit.producer_sdk.stub_broker import Failure, StubBroker

ONCE = RetryConfig(attempts=1)


async def test_each_send_is_stored_before_the_block_goes_on_and_its_end_commits(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        async with producer.transaction() as tx:
            first = await tx.send(
                "orders", "text", tag="t", keys=["k"], properties={"a": "b"}, message_group="customer-1"
            )
            assert stub.prepares[0].producer_group == "g"
            half = stub.prepares[0].transactions[0]
            assert (half.transaction_id, half.first_position) == (tx.transaction_id, 0)
            message = half.messages[0]
            assert (message.topic, message.body, message.tag, list(message.keys)) == ("orders", b"text", "t", ["k"])
            assert (dict(message.properties), message.message_group) == ({"a": "b"}, "customer-1")
            assert message.message_id == ""
            more = await tx.send_many([Message("orders", b"1"), Message("audit", b"2", keys="one")])
            assert stub.prepares[1].transactions[0].first_position == 1
            await tx.send("orders", bytearray(b"3"))
            assert stub.prepares[2].transactions[0].first_position == 3
            assert not stub.commits
        assert list(stub.commits[0].transaction_ids) == [tx.transaction_id]
    assert (first, *more) == (tx.transaction_id, f"{tx.transaction_id}.1", f"{tx.transaction_id}.2")
    assert tx.message_ids[-1] == f"{tx.transaction_id}.3"
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED
    assert tx.result.released[0].offset == 7


async def test_an_exception_rolls_back_and_goes_on(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        with pytest.raises(KeyError):
            async with producer.transaction() as tx:
                await tx.send("orders", b"x")
                raise KeyError("local")
        assert list(stub.rollbacks[0].transaction_ids) == [tx.transaction_id]
        assert stub.rollbacks[0].reason == "KeyError('local')"
        assert not stub.commits
        assert tx.result is not None
        assert tx.result.state is TransactionState.ROLLED_BACK


async def test_a_failing_rollback_does_not_hide_the_exception(
    stub: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=ONCE) as producer:
        with pytest.raises(KeyError):
            async with producer.transaction() as tx:
                await tx.send("orders", b"x")
                stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
                raise KeyError
    assert f"the rollback of transaction {tx.transaction_id} is unconfirmed" in caplog.text


async def test_a_transaction_without_messages_says_nothing_to_the_broker(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        async with producer.transaction() as tx:
            assert await tx.send_many([]) == ()
        with pytest.raises(KeyError):
            async with producer.transaction():
                raise KeyError
    assert tx.result is None
    assert (stub.prepares, stub.commits, stub.rollbacks) == ([], [], [])


async def test_an_unconfirmed_commit_is_an_error_of_its_own(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=ONCE) as producer:
        with pytest.raises(VerdictUnconfirmed, match="asks this producer group's listener") as caught:
            async with producer.transaction() as tx:
                await tx.send("orders", b"x")
                stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
    assert caught.value.transaction_id == tx.transaction_id
    assert not stub.rollbacks


async def test_a_refused_commit_carries_the_recorded_outcome(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        with pytest.raises(TransactionRefused) as caught:
            async with producer.transaction() as tx:
                await tx.send("orders", b"x")
                stub.recorded[tx.transaction_id] = int(TransactionState.ROLLED_BACK)
        assert caught.value.state is TransactionState.ROLLED_BACK
        assert (caught.value.reason, caught.value.code) == ("VERDICT_CONFLICT", grpc.StatusCode.FAILED_PRECONDITION)
        assert caught.value.transaction_id == tx.transaction_id


async def test_a_refused_message_rolls_back_unless_it_is_caught(stub: StubBroker) -> None:
    stub.refuse("nowhere", "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        with pytest.raises(RequestRefused):
            async with producer.transaction() as tx:
                await tx.send("orders", b"x")
                await tx.send("nowhere", b"x")
        assert list(stub.rollbacks[0].transaction_ids) == [tx.transaction_id]
        async with producer.transaction() as tx:
            with pytest.raises(RequestRefused):
                await tx.send("nowhere", b"x")
            await tx.send("orders", b"x")
        assert stub.prepares[-1].transactions[0].first_position == 0
        assert list(stub.commits[0].transaction_ids) == [tx.transaction_id]


async def test_after_a_doubtful_send_nothing_can_be_committed(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=ONCE) as producer:
        with pytest.raises(PrepareUnconfirmed):
            async with producer.transaction() as tx:
                stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
                for _ in range(2):
                    with pytest.raises(PrepareUnconfirmed):
                        await tx.send("orders", b"x")
        assert len(stub.prepares) == 1
        assert not stub.commits


async def test_a_doubtful_first_send_is_rolled_back_quietly_if_nothing_was_stored(
    stub: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=ONCE) as producer:
        with pytest.raises(PrepareUnconfirmed):
            async with producer.transaction() as tx:
                stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
                await tx.send("orders", b"x")
        assert list(stub.rollbacks[0].transaction_ids) == [tx.transaction_id]
    assert "VERDICT" not in caplog.text


async def test_the_rollback_of_a_cancelled_send_goes_after_it(stub: StubBroker) -> None:
    stub.gate.clear()
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:

        async def block() -> None:
            async with producer.transaction() as tx:
                await tx.send("orders", b"x")

        task = asyncio.create_task(block())
        await stub.until(lambda: stub.prepares)
        task.cancel()
        # Long enough for a rollback that does not wait to overtake the prepare: it would find nothing to roll back.
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(100)))
        assert not stub.rollbacks
        stub.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        transaction_id = stub.prepares[0].transactions[0].transaction_id
        assert stub.recorded[transaction_id] == TransactionState.ROLLED_BACK


async def test_sends_of_one_transaction_go_in_their_order(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer, producer.transaction() as tx:
        await asyncio.gather(*(tx.send("orders", str(number)) for number in range(5)))
    halves = [half for request in stub.prepares for half in request.transactions]
    assert [half.first_position for half in halves] == list(range(5))


async def test_a_transaction_can_be_rolled_back_inside_its_block(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer, producer.transaction() as tx:
        await tx.send("orders", b"x")
        await tx.rollback("changed my mind")
        with pytest.raises(TransactionRefused, match="is over"):
            await tx.send("orders", b"x")
    assert stub.rollbacks[0].reason == "changed my mind"
    assert not stub.commits


async def test_the_single_calls(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        prepared = await producer.prepare([Message("orders", "1"), Message("orders", "2")], first_check_delay=2.5)
        half = stub.prepares[0].transactions[0]
        assert prepared.state is TransactionState.PREPARED
        assert half.first_check_delay.ToNanoseconds() == 2_500_000_000
        await producer.prepare(Message("orders", "3"), prepared.transaction_id, first_position=2)
        assert stub.prepares[1].transactions[0].first_position == 2
        assert (await producer.commit(prepared.transaction_id)).state is TransactionState.COMMITTED
        with pytest.raises(TransactionRefused) as caught:
            await producer.rollback(prepared.transaction_id, "too late")
        assert caught.value.state is TransactionState.COMMITTED
        info = await producer.get_transaction(prepared.transaction_id)
        assert isinstance(info, TransactionInfo)
        assert (info.messages[0].text, info.checks[0].reason) == ("half", "busy")
        assert info.verdict is not None
        assert info.verdict.source is VerdictSource.CHECK
        assert info.prepared_at is not None
        assert info.prepared_at.tzinfo is not None
        assert info.parked_at is None
        with pytest.raises(RequestRefused) as unknown:
            await producer.get_transaction("01a1fc86-1001-75f5-b12b-ebb9e321ab4d")
        assert unknown.value.reason == "TRANSACTION_NOT_FOUND"


async def test_rollbacks_for_different_reasons_do_not_wait_for_each_other(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        prepared = [await producer.prepare(Message("orders", "x")) for _ in range(3)]
        stub.gate.clear()
        rollbacks = [
            asyncio.create_task(producer.rollback(one.transaction_id, f"reason {number}"))
            for number, one in enumerate(prepared)
        ]
        await stub.until(lambda: len(stub.rollbacks) == 3)
        stub.gate.set()
        await asyncio.gather(*rollbacks)
    assert sorted(request.reason for request in stub.rollbacks) == ["reason 0", "reason 1", "reason 2"]


async def test_the_synchronous_producer_does_the_same(stub: StubBroker) -> None:
    def work() -> None:
        producer = TransactionProducer(stub.endpoint, "g")  # usable without with and start()
        with producer.transaction() as tx:
            assert tx.send("orders", b"1") == tx.transaction_id
            assert len(tx.send_many([Message("orders", b"2")])) == 1
            assert len(stub.prepares) == 2
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
        assert len(tx.message_ids) == 2
        with pytest.raises(KeyError), producer.transaction() as tx:
            tx.send("orders", b"1")
            raise KeyError
        assert tx.result.state is TransactionState.ROLLED_BACK
        with producer.transaction() as tx:
            tx.send("orders", b"1")
            tx.rollback("no")
        prepared = producer.prepare(Message("orders", b"x"))
        assert producer.commit(prepared.transaction_id).state is TransactionState.COMMITTED
        with pytest.raises(TransactionRefused):
            producer.rollback(prepared.transaction_id)
        assert producer.get_transaction(prepared.transaction_id).check_count == 1
        assert producer.send("orders", b"x").topic == "orders"
        assert len(producer.send_many([Message("orders", b"x")])) == 1
        assert producer.group == "g"
        assert producer.client_id
        producer.close()
        producer.close()

    await asyncio.to_thread(work)
