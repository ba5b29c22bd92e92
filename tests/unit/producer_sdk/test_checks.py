from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from halfmq.v1 import transaction_pb2 as pb
from producer_sdk import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    Connection,
    HalfMessages,
    ListenerRequired,
    LocalTransactionState,
    Message,
    PrepareUnconfirmed,
    RequestRefused,
    RetryConfig,
    TransactionListener,
    TransactionProducer,
    TransactionState,
    VerdictUnconfirmed,
)
from unit.producer_sdk.stub_broker import Failure, StubBroker, rich_failure

if TYPE_CHECKING:
    from collections.abc import Callable

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
ONCE = RetryConfig(attempts=1)


class Listener(AsyncTransactionListener):
    """Answers what the test wants, when it wants."""

    def __init__(self, answer: Any = COMMIT) -> None:
        self.answer = answer
        self.asked: list[HalfMessages] = []
        self.came = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        self.asked.append(messages)
        if isinstance(arg, Exception):
            raise arg
        return arg  # type: ignore[no-any-return]

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.asked.append(messages)
        self.came.set()
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


class BlockingListener(TransactionListener):
    """Blocks its thread until the test lets it go."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.came = threading.Semaphore(0)

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        self.threads.append(threading.current_thread().name)
        if isinstance(arg, Exception):
            raise arg
        return arg  # type: ignore[no-any-return]

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.threads.append(threading.current_thread().name)
        self.came.release()
        self.gate.wait(10)
        return COMMIT


async def test_checks_are_asked_and_answered(stub: StubBroker) -> None:
    listener = Listener()
    async with AsyncTransactionProducer(stub.endpoint, "g", listener, client_id="me") as producer:
        await producer.wait_until_registered(10)
        session = await stub.session()
        assert session.register is not None
        assert (session.register.producer_group, session.register.client_id) == ("g", "me")
        session.check("t-1", 3, ["a", "b"])
        await stub.until(lambda: session.answers)
    answer = session.answers[0]
    assert (answer.transaction_id, answer.check_number, answer.verdict) == ("t-1", 3, pb.CHECK_VERDICT_COMMIT)
    asked = listener.asked[0]
    assert (asked.transaction_id, asked.check_number, asked.max_checks) == ("t-1", 3, 15)
    assert [message.text for message in asked] == ["a", "b"]
    assert (len(asked), asked[0].topic, len(asked[:1])) == (2, "orders", 1)
    assert asked.prepared_at is not None


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (ROLLBACK, pb.CHECK_VERDICT_ROLLBACK, ""),
        (UNKNOWN, pb.CHECK_VERDICT_UNKNOWN, ""),
        (ValueError("x" * 1_000), pb.CHECK_VERDICT_UNKNOWN, "ValueError('" + "x" * 488),
        ("yes", pb.CHECK_VERDICT_UNKNOWN, "TypeError"),
    ],
)
async def test_every_answer_has_its_verdict(stub: StubBroker, answer: Any, verdict: int, reason: str) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", Listener(answer)):
        session = await stub.session()
        session.check("t-1")
        await stub.until(lambda: session.answers)
    assert session.answers[0].verdict == verdict
    assert session.answers[0].reason.startswith(reason)
    assert len(session.answers[0].reason) <= 500


async def test_a_check_repeated_while_it_is_at_work_is_answered_once(stub: StubBroker) -> None:
    listener = Listener()
    listener.gate.clear()
    async with AsyncTransactionProducer(stub.endpoint, "g", listener):
        session = await stub.session()
        session.check("t-1", 1)
        await listener.came.wait()
        session.check("t-1", 2)
        session.check("t-2", 1)
        listener.came.clear()
        await listener.came.wait()
        listener.gate.set()
        await stub.until(lambda: len(session.answers) == 2)
        session.check("t-1", 3)
        await stub.until(lambda: len(session.answers) == 3)
    assert len(listener.asked) == 3
    assert sorted((answer.transaction_id, answer.check_number) for answer in session.answers) == [
        ("t-1", 2),
        ("t-1", 3),
        ("t-2", 1),
    ]


async def test_a_synchronous_listener_runs_in_a_bounded_number_of_threads(stub: StubBroker) -> None:
    listener = BlockingListener()
    async with AsyncTransactionProducer(stub.endpoint, "g", listener, listener_concurrency=2) as producer:
        session = await stub.session()
        for number in range(4):
            session.check(f"t-{number}")
        for _ in range(2):
            await asyncio.to_thread(listener.came.acquire, timeout=10)
        # The loop is free while they block.
        await producer.send("orders", b"x")
        assert len(listener.threads) == 2
        listener.gate.set()
        await stub.until(lambda: len(session.answers) == 4)
    assert all(name.startswith("halfmq-listener") for name in listener.threads)
    assert len(set(listener.threads)) <= 2


@pytest.mark.parametrize("how", ["end", "fail"])
async def test_the_stream_is_opened_again(stub: StubBroker, quick: RetryConfig, how: str) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", Listener(), retry=quick) as producer:
        first = await stub.session()
        if how == "end":
            first.end()
        else:
            first.fail(grpc.StatusCode.INTERNAL)
        second = await stub.session(1)
        await producer.wait_until_registered(10)
        second.check("t-1")
        await stub.until(lambda: second.answers)


async def test_the_stream_goes_to_another_endpoint(
    stub: StubBroker, second_stub: StubBroker, quick: RetryConfig
) -> None:
    both = Connection([stub.endpoint, second_stub.endpoint], retry=quick, in_order=True)
    async with AsyncTransactionProducer(both, "g", Listener()):
        (await stub.session()).end()
        await second_stub.session()
        await second_stub.stop()
        await stub.session(1)


async def test_a_verdict_without_confirmation_is_said_again_on_the_next_stream(
    stub: StubBroker, quick: RetryConfig
) -> None:
    listener = Listener()
    stub.confirm_answers = False
    async with AsyncTransactionProducer(stub.endpoint, "g", listener, retry=quick):
        first = await stub.session()
        first.check("t-1", 2)
        await stub.until(lambda: first.answers)
        listener.answer = UNKNOWN
        first.check("t-2")
        await stub.until(lambda: len(first.answers) == 2)
        stub.confirm_answers = True
        first.end()
        second = await stub.session(1)
        await stub.until(lambda: second.answers)
        second.end()
        third = await stub.session(2)
        third.check("t-3")
        await stub.until(lambda: third.answers)
    assert [(answer.transaction_id, answer.check_number) for answer in second.answers] == [("t-1", 2)]
    assert [answer.transaction_id for answer in third.answers] == ["t-3"]


async def test_a_refused_answer_is_logged(stub: StubBroker, caplog: pytest.LogCaptureFixture) -> None:
    stub.confirm_answers = False
    async with AsyncTransactionProducer(stub.endpoint, "g", Listener()):
        session = await stub.session()
        session.check("t-1")
        await stub.until(lambda: session.answers)
        result = pb.TransactionResult(transaction_id="t-1")
        result.error.reason = "VERDICT_CONFLICT"
        session.outgoing.put_nowait(pb.CheckTransactionsResponse(answered=pb.CheckAnswered(result=result)))
        session.check("t-2")
        await stub.until(lambda: len(session.answers) == 2)
    assert "VERDICT_CONFLICT" in caplog.text


async def test_close_lets_a_check_at_work_finish_and_its_answer_go_out(stub: StubBroker) -> None:
    listener = Listener()
    listener.gate.clear()
    producer = AsyncTransactionProducer(stub.endpoint, "g", listener)
    await producer.start()
    session = await stub.session()
    session.check("t-1")
    await listener.came.wait()
    closing = asyncio.create_task(producer.close())
    listener.gate.set()
    await closing
    assert [answer.transaction_id for answer in session.answers] == ["t-1"]


async def test_close_does_not_wait_for_ever_for_a_check(stub: StubBroker) -> None:
    listener = Listener()
    listener.gate.clear()
    producer = AsyncTransactionProducer(stub.endpoint, "g", listener, close_grace=0.05)
    await producer.start()
    (await stub.session()).check("t-1")
    await listener.came.wait()
    async with asyncio.timeout(5):
        await producer.close()


async def test_nobody_to_register_with_is_a_timeout(unused_tcp_port: int) -> None:
    async with AsyncTransactionProducer(f"127.0.0.1:{unused_tcp_port}", "g", Listener()) as producer:
        with pytest.raises(TimeoutError, match="no broker registered"):
            await producer.wait_until_registered(0.05)


async def test_without_a_listener_there_is_no_stream(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        await producer.prepare(Message("orders", b"x"))
        assert not stub.sessions
        with pytest.raises(ListenerRequired):
            await producer.wait_until_registered(1)
        with pytest.raises(ListenerRequired):
            await producer.send_in_transaction(Message("orders", b"x"))


@pytest.mark.parametrize("kind", [Listener, BlockingListener])
@pytest.mark.parametrize(
    ("word", "state", "decided"),
    [
        (COMMIT, TransactionState.COMMITTED, "commits"),
        (ROLLBACK, TransactionState.ROLLED_BACK, "rollbacks"),
        (UNKNOWN, TransactionState.PREPARED, ""),
    ],
)
async def test_send_in_transaction_passes_the_listeners_word_on(
    stub: StubBroker, kind: Callable[[], Any], word: Any, state: TransactionState, decided: str
) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", kind()) as producer:
        result = await producer.send_in_transaction([Message("orders", "a"), Message("orders", "b")], word)
    assert (result.local_state, result.state, result.local_error) == (word, state, None)
    assert result.message_ids == (result.transaction_id, f"{result.transaction_id}.1")
    assert len(result.released) == (2 if word is COMMIT else 0)
    assert [name for name in ("commits", "rollbacks") if getattr(stub, name)] == ([decided] if decided else [])


@pytest.mark.parametrize("arg", [ValueError("after the commit?"), None])
async def test_a_failing_local_transaction_is_left_to_the_check(stub: StubBroker, arg: Any) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", Listener()) as producer:
        result = await producer.send_in_transaction(Message("orders", "a"), arg)
    assert (result.local_state, result.state) == (UNKNOWN, TransactionState.PREPARED)
    assert result.local_error is arg or isinstance(result.local_error, TypeError)
    assert (stub.commits, stub.rollbacks) == ([], [])


async def test_the_local_transaction_does_not_run_if_the_prepare_failed(stub: StubBroker) -> None:
    listener = Listener()
    stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
    async with AsyncTransactionProducer(stub.endpoint, "g", listener, retry=ONCE) as producer:
        with pytest.raises(PrepareUnconfirmed):
            await producer.send_in_transaction(Message("orders", "a"), COMMIT)
    assert not listener.asked


async def test_an_unconfirmed_commit_is_raised_and_an_unconfirmed_rollback_is_not(stub: StubBroker) -> None:
    class Cutting(Listener):
        async def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
            stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
            return await super().execute_local_transaction(messages, arg)

    async with AsyncTransactionProducer(stub.endpoint, "g", Cutting(), retry=ONCE) as producer:
        with pytest.raises(VerdictUnconfirmed):
            await producer.send_in_transaction(Message("orders", "a"), COMMIT)
        result = await producer.send_in_transaction(Message("orders", "a"), ROLLBACK)
    assert result.state is TransactionState.PREPARED


async def test_the_synchronous_producer_runs_the_local_transaction_in_the_calling_thread(stub: StubBroker) -> None:
    listener = BlockingListener()
    listener.gate.set()

    def work() -> None:
        with TransactionProducer(stub.endpoint, "g", listener) as producer:
            producer.wait_until_registered(10)
            result = producer.send_in_transaction(Message("orders", "a"), COMMIT)
            assert result.state is TransactionState.COMMITTED
            assert listener.threads == [threading.current_thread().name]
            failed = producer.send_in_transaction(Message("orders", "a"), ValueError("x"))
            assert isinstance(failed.local_error, ValueError)
            asyncio.run_coroutine_threadsafe(ask(), loop).result(10)

    async def ask() -> None:
        session = await stub.session()
        session.check("t-1")
        await stub.until(lambda: session.answers)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(work)
    assert stub.sessions[0].answers[0].verdict == pb.CHECK_VERDICT_COMMIT


@pytest.mark.parametrize("kind", ["coroutine", "function"])
@pytest.mark.parametrize("error", [SystemExit(4), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_check_that_exits_counts_as_unknown(
    stub: StubBroker, caplog: pytest.LogCaptureFixture, kind: str, error: BaseException
) -> None:
    class Leaving(Listener):
        async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
            raise error

    class LeavingItsThread(BlockingListener):
        def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
            raise error

    listener = Leaving() if kind == "coroutine" else LeavingItsThread()
    async with asyncio.timeout(10), AsyncTransactionProducer(stub.endpoint, "g", listener):
        session = await stub.session()
        session.check("t-1", 1)
        await stub.until(lambda: session.answers)
        session.check("t-1", 2)
        await stub.until(lambda: len(session.answers) == 2)
    assert {answer.verdict for answer in session.answers} == {pb.CHECK_VERDICT_UNKNOWN}
    assert session.answers[0].reason == repr(error)
    assert "answering UNKNOWN" in caplog.text


async def test_a_check_stream_that_is_put_off_comes_back_when_it_was_told_to(stub: StubBroker) -> None:
    patient = RetryConfig(initial_backoff=60, maximum_backoff=60, deadline=300)
    stub.check_refusal = rich_failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "producer_group", 0.05)
    async with asyncio.timeout(10), AsyncTransactionProducer(stub.endpoint, "g", Listener(), retry=patient) as producer:
        await stub.until(lambda: stub.check_refusals == 2)
        stub.check_refusal = None
        await producer.wait_until_registered()


async def test_a_check_stream_that_outlives_its_token_is_opened_again(
    stub: StubBroker, quick: RetryConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(10), AsyncTransactionProducer(stub.endpoint, "g", Listener(), retry=quick) as producer:
        for number in range(3):
            session = await stub.session(number)
            session.check(f"t-{number}")
            await stub.until(lambda s=session: s.answers)
            session.fail(grpc.StatusCode.UNAUTHENTICATED)
        await stub.session(3)
        await producer.wait_until_registered()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        # If there is no other token, it is refused.
        stub.check_refusal = Failure(grpc.StatusCode.UNAUTHENTICATED)
        stub.sessions[3].fail(grpc.StatusCode.UNAUTHENTICATED)
        await stub.until(lambda: stub.check_refusals == 1)
        with pytest.raises(RequestRefused):
            while True:
                await producer.wait_until_registered()
                await asyncio.sleep(0.01)


async def test_a_refused_check_stream_says_what_to_do(
    stub: StubBroker, quick: RetryConfig, caplog: pytest.LogCaptureFixture
) -> None:
    stub.check_refusal = rich_failure(grpc.StatusCode.INVALID_ARGUMENT, "NAME_INVALID", "producer_group")
    async with asyncio.timeout(10), AsyncTransactionProducer(stub.endpoint, "g", Listener(), retry=quick) as producer:
        with pytest.raises(RequestRefused, match="answers no checks") as caught:
            await producer.wait_until_registered()
    assert (caught.value.reason, caught.value.field) == ("NAME_INVALID", "producer_group")
    (record,) = [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    assert record.levelname == "ERROR"
    assert "correct the group" in record.getMessage()
