"""A broker that remembers what it was told and says what a test wants; real gRPC over loopback."""

# ruff: noqa: N802 - the names are those of the protocol
from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from halfmq.v1 import (
    message_pb2,
    producer_pb2,
    producer_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


SCHEDULED = 1_900_000_000
"""When a stub's messages that are to wait will be delivered, in seconds since 1970."""


class Failure(NamedTuple):
    code: grpc.StatusCode
    details: str = "as the test wants"
    trailing: tuple[tuple[str, str | bytes], ...] = ()


def rich_failure(code: grpc.StatusCode, reason: str, field: str, retry_after: float | None = None) -> Failure:
    """A refusal with the details that brokers send, and perhaps with the seconds after which to try again."""
    status = status_pb2.Status(code=code.value[0], message="no")
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description="no")
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=reason, domain="halfmq"),
        error_details_pb2.BadRequest(field_violations=[violation]),
    ]
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(retry_after * 1000))
        details.append(retry)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return Failure(code, f"{field}: no", (("grpc-status-details-bin", status.SerializeToString()),))


def _scheduled(topic: str, message_id: str) -> message_pb2.LogPosition:
    position = message_pb2.LogPosition(topic=topic, message_id=message_id)
    position.scheduled_at.FromSeconds(SCHEDULED)
    return position


class Signals:
    """Lets a test wait until something it can state has become true."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(true)


class CheckSession:
    """The broker's end of one check stream."""

    def __init__(self) -> None:
        self.register: transaction_pb2.RegisterProducer | None = None
        self.answers: list[transaction_pb2.CheckAnswer] = []
        self.outgoing: asyncio.Queue[transaction_pb2.CheckTransactionsResponse | Failure | None] = asyncio.Queue()
        self.closed = False

    def check(self, transaction_id: str, number: int = 1, bodies: Sequence[str] = ("half",)) -> None:
        messages = [message_pb2.Message(topic="orders", body=body.encode()) for body in bodies]
        check = transaction_pb2.TransactionCheck(
            transaction_id=transaction_id, check_number=number, max_checks=15, messages=messages
        )
        check.prepared_at.FromSeconds(1_700_000_000)
        self.outgoing.put_nowait(transaction_pb2.CheckTransactionsResponse(check=check))

    def end(self) -> None:
        self.outgoing.put_nowait(None)

    def fail(self, code: grpc.StatusCode) -> None:
        self.outgoing.put_nowait(Failure(code))


class StubBroker(Signals, transaction_pb2_grpc.TransactionServiceServicer, producer_pb2_grpc.ProducerServiceServicer):
    """Answers every item well unless it was told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint = ""
        self.prepares: list[transaction_pb2.PrepareRequest] = []
        self.commits: list[transaction_pb2.CommitRequest] = []
        self.rollbacks: list[transaction_pb2.RollbackRequest] = []
        self.sends: list[producer_pb2.SendRequest] = []
        self.recalls: list[producer_pb2.RecallRequest] = []
        self.owners: dict[str, str] = {}
        self.sessions: list[CheckSession] = []
        self.failures: deque[Failure] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.recorded: dict[str, int] = {}
        self.item_errors: dict[str, deque[message_pb2.ItemError]] = {}
        self.confirm_answers = True
        self.heartbeat = False
        self.check_refusal: Failure | None = None
        self.check_refusals = 0

    async def __aenter__(self) -> Self:
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 25)])
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(self, self.server)
        producer_pb2_grpc.add_ProducerServiceServicer_to_server(self, self.server)
        self.add_services()
        port = self.server.add_insecure_port(self.endpoint or "127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{port}"
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self.gate.set()
        await self.server.stop(0)

    def add_services(self) -> None:
        """For stubs that serve more."""

    async def session(self, number: int = 0) -> CheckSession:
        """Waits for the n-th check stream to register."""
        await self.until(lambda: len(self.sessions) > number and self.sessions[number].register)
        return self.sessions[number]

    def refuse(self, name: str, reason: str, code: grpc.StatusCode, times: int = 1_000) -> None:
        """Refuses items of a topic or a transaction id."""
        error = message_pb2.ItemError(code=code.value[0], reason=reason, message=f"{reason}!", field="topic")
        self.item_errors[name] = deque([error] * times)

    def _error(self, *names: str) -> message_pb2.ItemError | None:
        for name in names:
            if self.item_errors.get(name):
                return self.item_errors[name].popleft()
        return None

    async def _take(self, into: list[Any], request: Any, context: Any) -> None:
        into.append(request)
        await self.changed()
        await self.gate.wait()
        if self.failures:
            failure = self.failures.popleft()
            await context.abort(failure.code, failure.details, failure.trailing)

    async def Prepare(self, request: Any, context: Any) -> transaction_pb2.PrepareResponse:
        await self._take(self.prepares, request, context)
        response = transaction_pb2.PrepareResponse()
        for half in request.transactions:
            error = self._error(half.transaction_id, *(message.topic for message in half.messages))
            if error is None:
                self.recorded.setdefault(half.transaction_id, transaction_pb2.TRANSACTION_STATE_PREPARED)
            response.results.add(
                transaction_id=half.transaction_id, state=self.recorded.get(half.transaction_id, 0), error=error
            )
        return response

    def _decide(self, ids: Sequence[str], state: int) -> list[transaction_pb2.TransactionResult]:
        results = []
        for transaction_id in ids:
            error = self._error(transaction_id)
            recorded = self.recorded.get(transaction_id, 0)
            if error is None and recorded not in {transaction_pb2.TRANSACTION_STATE_PREPARED, state}:
                error = message_pb2.ItemError(
                    code=grpc.StatusCode.FAILED_PRECONDITION.value[0] if recorded else 5,
                    reason="VERDICT_CONFLICT" if recorded else "TRANSACTION_NOT_FOUND",
                    message="no",
                )
            if error is None:
                recorded = self.recorded[transaction_id] = state
            released = []
            if error is None and state == transaction_pb2.TRANSACTION_STATE_COMMITTED:
                released = [message_pb2.LogPosition(topic="orders", queue=1, offset=7, message_id=transaction_id)]
                released += [_scheduled("orders", f"{transaction_id}.1")]
            results.append(
                transaction_pb2.TransactionResult(
                    transaction_id=transaction_id, state=recorded, released=released, error=error
                )
            )
        return results

    async def Commit(self, request: Any, context: Any) -> transaction_pb2.CommitResponse:
        await self._take(self.commits, request, context)
        results = self._decide(request.transaction_ids, transaction_pb2.TRANSACTION_STATE_COMMITTED)
        return transaction_pb2.CommitResponse(results=results)

    async def Rollback(self, request: Any, context: Any) -> transaction_pb2.RollbackResponse:
        await self._take(self.rollbacks, request, context)
        results = self._decide(request.transaction_ids, transaction_pb2.TRANSACTION_STATE_ROLLED_BACK)
        return transaction_pb2.RollbackResponse(results=results)

    async def Send(self, request: Any, context: Any) -> producer_pb2.SendResponse:
        await self._take(self.sends, request, context)
        response = producer_pb2.SendResponse()
        for offset, message in enumerate(request.messages):
            error = self._error(message.topic)
            if error is not None:
                response.results.add(error=error)
                continue
            owner = self.owners.setdefault(message.dedup_key, message.message_id) if message.dedup_key else ""
            position = message_pb2.LogPosition(
                topic=message.topic, offset=offset, message_id=owner or message.message_id
            )
            if message.WhichOneof("delivery"):
                position = _scheduled(message.topic, position.message_id)
            response.results.add(position=position, duplicate=owner not in {"", message.message_id})
        return response

    async def Recall(self, request: Any, context: Any) -> producer_pb2.RecallResponse:
        await self._take(self.recalls, request, context)
        response = producer_pb2.RecallResponse()
        for one in request.message_ids:
            error = self._error(one)
            result = response.results.add(message_id=one, error=error)
            if error is None:
                result.recalled_at.FromSeconds(1_700_000_000)
        return response

    async def GetTransaction(self, request: Any, context: Any) -> transaction_pb2.GetTransactionResponse:
        await self._take([], request, context)
        state = self.recorded.get(request.transaction_id)
        if state is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, "no such transaction", (("halfmq-reason", "TRANSACTION_NOT_FOUND"),)
            )
        transaction = transaction_pb2.Transaction(transaction_id=request.transaction_id, state=state, check_count=1)
        transaction.prepared_at.FromSeconds(1_700_000_000)
        transaction.halves.add(topic="orders", text="half")
        transaction.checks.add(check_number=1, verdict=transaction_pb2.CHECK_VERDICT_UNKNOWN, reason="busy")
        transaction.op.state = transaction_pb2.TRANSACTION_STATE_COMMITTED
        transaction.op.source = transaction_pb2.VERDICT_SOURCE_CHECK
        return transaction_pb2.GetTransactionResponse(transaction=transaction)

    async def CheckTransactions(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[transaction_pb2.CheckTransactionsResponse]:
        if self.check_refusal is not None:
            # The one thing that the producer says: gRPC calls it an internal error when a stream ends under a write.
            await anext(request_iterator)
            self.check_refusals += 1
            await self.changed()
            await context.abort(*self.check_refusal)
        session = CheckSession()
        self.sessions.append(session)
        reader = asyncio.create_task(self._read_answers(session, request_iterator))
        try:
            while (response := await session.outgoing.get()) is not None:
                if isinstance(response, Failure):
                    await context.abort(response.code, response.details)
                yield response
        finally:
            session.closed = True
            reader.cancel()
            await asyncio.wait([reader])

    async def _read_answers(self, session: CheckSession, requests: Any) -> None:
        async for request in requests:
            if request.WhichOneof("event") == "register":
                session.register = request.register
                registered = transaction_pb2.ProducerRegistered(broker_id="stub")
                if self.heartbeat:
                    registered.heartbeat.CopyFrom(request.register.heartbeat)
                session.outgoing.put_nowait(transaction_pb2.CheckTransactionsResponse(registered=registered))
            else:
                session.answers.append(request.answer)
                if self.confirm_answers:
                    result = transaction_pb2.TransactionResult(transaction_id=request.answer.transaction_id)
                    answered = transaction_pb2.CheckAnswered(result=result)
                    session.outgoing.put_nowait(transaction_pb2.CheckTransactionsResponse(answered=answered))
            await self.changed()
        session.end()
