"""TransactionService."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.api import heartbeats
from broker.api.converters import transactions
from broker.domain.access import Action, Kind
from broker.domain.ids import parse_id
from broker.domain.limits import MAX_REASON, check_client_id, check_reason
from broker.domain.trace import sampled
from broker.domain.transaction import CheckVerdict, VerdictSource
from broker.errors import BrokerError, Denied, InvalidArgument
from broker.ports.checks import CheckAnswer
from broker.ports.connections import ClientKind
from broker.ports.transactions import VerdictWork
from broker.services.connections import Connected, Figures
from broker.services.producing.check_sessions import CheckSession
from broker.services.rights import CALLER, CLIENT_ID
from broker.wire.clients import library_of, place_of
from broker.wire.stream_writer import StreamWriter
from halfmq.v1 import message_pb2, transaction_pb2, transaction_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    import grpc

    from broker.services.catalog import Catalog
    from broker.services.connections import Connections
    from broker.services.operating.transactions import TransactionOperations
    from broker.services.producing.check_sessions import CheckSessions
    from broker.services.producing.checks import Answers
    from broker.services.producing.transactions import PlacedOutcome, TransactionService

    _CheckContext = grpc.aio.ServicerContext[
        transaction_pb2.CheckTransactionsRequest, AsyncIterator[transaction_pb2.CheckTransactionsResponse]
    ]
    _CheckResponse = transaction_pb2.CheckTransactionsResponse
    _Context = grpc.aio.ServicerContext[object, object]

ANSWERS_AT_ONCE = 500
LONGEST_ID = 80
"""Characters of an id that is answered with an error; those of transactions are shorter."""


def _topics_of(request: transaction_pb2.PrepareRequest) -> Iterator[str]:
    return (message.topic for item in request.transactions for message in item.messages)


def _verdicts(
    ids: Sequence[str], traceparents: Sequence[str], *, commit: bool, reason: str = ""
) -> list[VerdictWork | BrokerError]:
    verdicts: list[VerdictWork | BrokerError] = []
    # They are no part of the verdict: wrong ones are ignored.
    traces = traceparents if len(traceparents) == len(ids) else [""] * len(ids)
    for text, trace in zip(ids, traces, strict=True):
        try:
            work = VerdictWork(parse_id(text), commit, VerdictSource.PRODUCER, reason)
            if trace:
                work.traceparent = sampled(trace)
            verdicts.append(work)
        except InvalidArgument as error:
            verdicts.append(error.as_outcome())
    return verdicts


class TransactionServicer(transaction_pb2_grpc.TransactionServiceServicer):
    """Half messages and verdicts."""

    def __init__(
        self,
        transactions: TransactionService,
        operations: TransactionOperations,
        sessions: CheckSessions,
        catalog: Catalog,
        answers: Answers,
        connections: Connections,
        broker_id: str,
    ) -> None:
        """Takes the services it exposes."""
        self._transactions = transactions
        self._operations = operations
        self._sessions = sessions
        self._catalog = catalog
        self._answers = answers
        self._connections = connections
        self._broker_id = broker_id

    async def Prepare(
        self, request: transaction_pb2.PrepareRequest, context: _Context
    ) -> transaction_pb2.PrepareResponse:
        """Stores half messages."""
        limits = self._transactions.limits
        limits.check_items(len(request.transactions), "transactions")
        denied = CALLER.get().not_allowed(Action.PUB, Kind.TOPIC, _topics_of(request), limits.max_items)
        items = [
            Denied().as_outcome()
            if denied and any(message.topic in denied for message in item.messages)
            else transactions.half_transaction(item, limits)
            for item in request.transactions
        ]
        outcomes = await self._transactions.prepare(request.producer_group, items)
        response = transaction_pb2.PrepareResponse()
        for item, outcome in zip(request.transactions, outcomes, strict=True):
            transactions.add_transaction_result(response.results, outcome, item.transaction_id)
        return response

    async def Commit(self, request: transaction_pb2.CommitRequest, context: _Context) -> transaction_pb2.CommitResponse:
        """Releases transactions."""
        self._transactions.limits.check_items(len(request.transaction_ids), "transaction_ids")
        response = transaction_pb2.CommitResponse()
        verdicts = _verdicts(request.transaction_ids, request.traceparents, commit=True)
        outcomes = await self._transactions.decide(verdicts, CALLER.get().judge(Action.PUB, Kind.GROUP))
        for transaction_id, outcome in zip(request.transaction_ids, outcomes, strict=True):
            transactions.add_transaction_result(response.results, outcome, transaction_id)
        return response

    async def Rollback(
        self, request: transaction_pb2.RollbackRequest, context: _Context
    ) -> transaction_pb2.RollbackResponse:
        """Drops transactions."""
        self._transactions.limits.check_items(len(request.transaction_ids), "transaction_ids")
        reason = check_reason(request.reason)
        verdicts = _verdicts(request.transaction_ids, request.traceparents, commit=False, reason=reason)
        response = transaction_pb2.RollbackResponse()
        outcomes = await self._transactions.decide(verdicts, CALLER.get().judge(Action.PUB, Kind.GROUP))
        for transaction_id, outcome in zip(request.transaction_ids, outcomes, strict=True):
            transactions.add_transaction_result(response.results, outcome, transaction_id)
        return response

    async def GetTransaction(
        self, request: transaction_pb2.GetTransactionRequest, context: _Context
    ) -> transaction_pb2.GetTransactionResponse:
        """Returns all that is known of a transaction."""
        may = CALLER.get().judge(Action.GET, Kind.GROUP)
        detail, released = await self._operations.transaction(parse_id(request.transaction_id), may)
        return transaction_pb2.GetTransactionResponse(transaction=transactions.transaction(detail, released))

    async def CheckTransactions(
        self, request_iterator: AsyncIterator[transaction_pb2.CheckTransactionsRequest], context: _CheckContext
    ) -> AsyncIterator[transaction_pb2.CheckTransactionsResponse]:
        """Sends checks to the producer, as long as its stream is open."""
        producer = await self._introduced(request_iterator)
        registered = transaction_pb2.ProducerRegistered(broker_id=self._broker_id)
        beat = transaction_pb2.CheckTransactionsResponse(heartbeat=message_pb2.Heartbeat())
        heartbeat = heartbeats.agreed(producer, "register.heartbeat", registered, beat)
        group_id = await self._catalog.producer_group_id(producer.producer_group)
        session = CheckSession(producer.client_id or "producer")
        CLIENT_ID.set(session.client_id)
        writer: StreamWriter[_CheckResponse] = StreamWriter()
        connected = Connected(
            ClientKind.PRODUCER,
            session.client_id,
            place_of(context.peer()),
            library_of(context),
            CALLER.get().name,
            [producer.producer_group],
            figures=lambda: Figures(delivered=session.sent, held=session.unanswered),
        )
        try:
            with self._connections.open(connected):
                yield transaction_pb2.CheckTransactionsResponse(registered=registered)
                self._sessions.admit(session, group_id)
                async for response in writer.run(
                    _send_checks(session, writer),
                    self._take_answers(request_iterator, session, frozenset({group_id}), writer),
                    heartbeat=heartbeat,
                ):
                    yield response
        finally:
            self._sessions.end(session)

    @staticmethod
    async def _introduced(
        requests: AsyncIterator[transaction_pb2.CheckTransactionsRequest],
    ) -> transaction_pb2.RegisterProducer:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("event") != "register":
            raise InvalidArgument("The first request on this stream must be register.", field="register")
        check_client_id(first.register.client_id, "register.client_id")
        return first.register

    async def _take_answers(
        self,
        requests: AsyncIterator[transaction_pb2.CheckTransactionsRequest],
        session: CheckSession,
        groups: frozenset[int],
        writer: StreamWriter[_CheckResponse],
    ) -> None:
        room = asyncio.Semaphore(ANSWERS_AT_ONCE)
        refused: BrokerError | None = None
        async with asyncio.TaskGroup() as answers:
            try:
                async for request in requests:
                    if request.WhichOneof("event") != "answer":
                        refused = InvalidArgument("Only answers may follow the registration.", field="event")
                        break
                    await room.acquire()
                    # What waits is small, whatever the request holds.
                    said = request.answer
                    taking = self._take_answer(
                        said.transaction_id[:LONGEST_ID],
                        said.check_number,
                        said.verdict,
                        said.reason[:MAX_REASON],
                        sampled(said.traceparent),
                        session,
                        groups,
                        writer,
                    )
                    answers.create_task(taking).add_done_callback(lambda _: room.release())
                    del said, request
            except BrokerError as error:  # It cannot be decoded, or exceeds the budget.
                refused = error.as_outcome()
        # Not raised inside: the task group would wrap it, and a wrapped error is not recognised.
        if refused is not None:
            raise refused

    async def _take_answer(
        self,
        text_of_id: str,
        check_number: int,
        verdict: int,
        reason: str,
        traceparent: str,
        session: CheckSession,
        groups: frozenset[int],
        writer: StreamWriter[_CheckResponse],
    ) -> None:
        outcome: PlacedOutcome | BrokerError
        try:
            transaction_id = parse_id(text_of_id)
            session.answered(transaction_id)
            said = CheckVerdict(verdict or CheckVerdict.UNKNOWN)
            given = CheckAnswer(session.client_id, said, check_reason(reason), groups, traceparent=traceparent)
            taken = await self._answers.take(transaction_id, given, check_number)
            if taken is None:
                return
            outcome = taken
        except BrokerError as error:
            # Also when the database is unreachable: the transaction is unchanged and is checked again.
            outcome = error.as_outcome()
        except ValueError as error:
            outcome = InvalidArgument(str(error), field="answer")
        result = transactions.transaction_result(outcome, text_of_id)
        response = transaction_pb2.CheckTransactionsResponse(answered=transaction_pb2.CheckAnswered(result=result))
        await writer.answer(response, response.ByteSize())


async def _send_checks(session: CheckSession, writer: StreamWriter[_CheckResponse]) -> None:
    async for claimed in session.outgoing():
        await writer.write(transaction_pb2.CheckTransactionsResponse(check=transactions.check(claimed)))
