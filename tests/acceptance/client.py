"""A thin client on the generated stubs: short words for what the acceptance tests do, nothing hidden."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from client_core.connection.auth import AuthorizedChannel, BearerToken
from halfmq.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    consumer_pb2,
    consumer_pb2_grpc,
    message_pb2,
    producer_pb2,
    producer_pb2_grpc,
    query_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence
    from types import TracebackType

PATIENCE = 30.0
COMMIT = transaction_pb2.CHECK_VERDICT_COMMIT
ROLLBACK = transaction_pb2.CHECK_VERDICT_ROLLBACK
UNKNOWN = transaction_pb2.CHECK_VERDICT_UNKNOWN
PREPARED = transaction_pb2.TRANSACTION_STATE_PREPARED
COMMITTED = transaction_pb2.TRANSACTION_STATE_COMMITTED
ROLLED_BACK = transaction_pb2.TRANSACTION_STATE_ROLLED_BACK
PARKED = transaction_pb2.TRANSACTION_STATE_PARKED

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # As the SDKs: windows that grow with the measured rate and delay may hold all that a busy machine has sent.
    ("grpc.http2.bdp_probe", 0),
]


def new_id() -> str:
    return str(uuid.uuid4())


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def message(topic: str, body: bytes | str = b"hello", **rest: Any) -> message_pb2.Message:
    return message_pb2.Message(topic=topic, body=body.encode() if isinstance(body, str) else body, **rest)


def half(
    messages: Sequence[message_pb2.Message], transaction_id: str | None = None, check_after: float | None = None
) -> transaction_pb2.HalfTransaction:
    item = transaction_pb2.HalfTransaction(transaction_id=transaction_id or new_id(), messages=messages)
    if check_after is not None:
        item.first_check_delay.FromMicroseconds(int(check_after * 1e6))
    return item


class Refusal(Exception):
    """What a call was refused with; of a stream that ended well: OK."""

    def __init__(self, error: grpc.aio.AioRpcError | None) -> None:
        super().__init__(error.details() if error else "ended")
        self.code = error.code() if error else grpc.StatusCode.OK
        self.text = ""
        self.reason = ""
        self.info = error_details_pb2.ErrorInfo()
        if error is None:
            return
        self.text = error.details() or ""
        metadata = dict(error.trailing_metadata() or ())
        self.reason = metadata.get("halfmq-reason", "")
        for detail in status_pb2.Status.FromString(metadata.get("grpc-status-details-bin", b"")).details:
            detail.Unpack(self.info)


async def refused_field(call: Awaitable[Any], field: str) -> None:
    """A call that must be refused because of one of its fields."""
    with pytest.raises(Refusal) as error:
        await call
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.text.startswith(f"{field}: "), error.value.text


class Client:
    """One connection to one broker."""

    def __init__(self, endpoint: str, token: str | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        if token is not None:
            self.channel = cast("grpc.aio.Channel", AuthorizedChannel(self.channel, BearerToken(token)))
        self.transactions = transaction_pb2_grpc.TransactionServiceStub(self.channel)
        self.producer = producer_pb2_grpc.ProducerServiceStub(self.channel)
        self.consumer = consumer_pb2_grpc.ConsumerServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.query = query_pb2_grpc.QueryServiceStub(self.channel)
        self._streams: list[Checks] = []

    async def close(self) -> None:
        """Hangs up; streams end first, for they must not outlive the event loop."""
        for stream in self._streams:
            await stream.leave()
        await self.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, method: Any, request: Any) -> Any:
        """A call, with its refusal as an exception that is easy to look at."""
        try:
            return await method(request, timeout=PATIENCE)
        except grpc.aio.AioRpcError as error:
            raise Refusal(error) from None

    async def stream(self, method: Any, request: Any) -> list[Any]:
        """All answers of a call that answers with a stream."""
        try:
            return [response async for response in method(request, timeout=PATIENCE)]
        except grpc.aio.AioRpcError as error:
            raise Refusal(error) from None

    async def make_topic(self, prefix: str = "orders", queues: int = 1) -> str:
        name = unique(prefix)
        wanted = admin_pb2.Topic(name=name, queue_count=queues)
        await self.call(self.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
        return name

    async def make_group(self, prefix: str = "readers") -> str:
        name = unique(prefix)
        wanted = admin_pb2.ConsumerGroup(name=name)
        await self.call(self.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
        return name

    async def prepare_items(
        self, group: str, items: Iterable[transaction_pb2.HalfTransaction]
    ) -> list[transaction_pb2.TransactionResult]:
        request = transaction_pb2.PrepareRequest(producer_group=group, transactions=items)
        return list((await self.call(self.transactions.Prepare, request)).results)

    async def prepare(
        self, group: str, topic: str, bodies: Sequence[str], check_after: float | None = None
    ) -> list[str]:
        """One transaction with one message for each body; their ids."""
        items = [half([message(topic, body)], check_after=check_after) for body in bodies]
        results = await self.prepare_items(group, items)
        assert [result.state for result in results] == [PREPARED] * len(bodies)
        assert not any(result.HasField("error") for result in results)
        return [result.transaction_id for result in results]

    async def commit(self, ids: Sequence[str]) -> list[transaction_pb2.TransactionResult]:
        request = transaction_pb2.CommitRequest(transaction_ids=ids)
        return list((await self.call(self.transactions.Commit, request)).results)

    async def roll_back(self, ids: Sequence[str], reason: str = "") -> list[transaction_pb2.TransactionResult]:
        request = transaction_pb2.RollbackRequest(transaction_ids=ids, reason=reason)
        return list((await self.call(self.transactions.Rollback, request)).results)

    async def transaction(self, transaction_id: str) -> transaction_pb2.Transaction:
        request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
        response = await self.call(self.transactions.GetTransaction, request)
        found: transaction_pb2.Transaction = response.transaction
        return found

    async def until_parked(self, ids: Iterable[str], checks: Checks) -> None:
        """Answers UNKNOWN until these are parked. Not read from a log: any broker of the database may park them."""
        answering = asyncio.create_task(checks.answer_unknown())
        async with asyncio.timeout(2 * PATIENCE):
            for one in ids:
                while not answering.done():
                    if (await self.transaction(one)).state == PARKED:
                        break
                    await asyncio.sleep(0.1)
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering

    async def undecided(self, group: str) -> dict[str, admin_pb2.TransactionSummary]:
        request = admin_pb2.ListTransactionsRequest(producer_group=group, page_size=1000)
        found = (await self.call(self.admin.ListTransactions, request)).transactions
        return {summary.transaction_id: summary for summary in found}

    async def log(self, topic: str, queue: int = 0) -> list[message_pb2.LogMessage]:
        """Everything that lies in a queue."""
        request = consumer_pb2.ReadQueueRequest(topic=topic, queue=queue, max_messages=100_000)
        pieces = await self.stream(self.consumer.ReadQueue, request)
        return [found for piece in pieces for found in piece.messages]

    async def bodies(self, topic: str, queue: int = 0) -> list[str]:
        return [found.body.decode() for found in await self.log(topic, queue)]

    async def send(self, topic: str, body: str = "ordinary", **rest: Any) -> producer_pb2.SendResult:
        request = producer_pb2.SendRequest(messages=[message(topic, body, **rest)])
        result: producer_pb2.SendResult = (await self.call(self.producer.Send, request)).results[0]
        return result

    async def pull(self, group: str, topic: str, most: int = 1000, wait: float = 0) -> list[consumer_pb2.Delivery]:
        request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic], max_messages=most)
        request.wait.FromMicroseconds(int(wait * 1e6))
        pieces = await self.stream(self.consumer.Pull, request)
        return [delivery for piece in pieces for delivery in piece.deliveries]

    async def consume_all(self, group: str, topic: str) -> list[str]:
        """Pulls and acknowledges until nothing is left; the bodies, in the order of their arrival."""
        bodies = []
        while deliveries := await self.pull(group, topic):
            bodies += [delivery.message.body.decode() for delivery in deliveries]
            request = consumer_pb2.AckRequest(receipt_handles=[delivery.receipt_handle for delivery in deliveries])
            results = (await self.call(self.consumer.Ack, request)).results
            assert not any(result.HasField("error") for result in results)
        return bodies

    async def answering(self, group: str, client_id: str = "") -> Checks:
        """Registers a producer that can be asked about its group's transactions."""
        call = self.transactions.CheckTransactions()
        stream = Checks(call)
        self._streams.append(stream)
        register = transaction_pb2.RegisterProducer(producer_group=group, client_id=client_id)
        await call.write(transaction_pb2.CheckTransactionsRequest(register=register))
        await stream.registered()
        return stream


class Checks:
    """A producer's check stream; `seen` holds every check that came."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._received: asyncio.Queue[transaction_pb2.CheckTransactionsResponse | Refusal] = asyncio.Queue()
        self._unread: list[transaction_pb2.TransactionCheck] = []
        self.seen: list[transaction_pb2.TransactionCheck] = []
        # A task of its own: whoever gives up waiting for the stream would otherwise cancel it.
        self._reader = asyncio.create_task(self._pump())

    async def _pump(self) -> None:
        try:
            async for response in self._call:
                self._received.put_nowait(response)
            self._received.put_nowait(Refusal(None))
        except grpc.aio.AioRpcError as error:
            self._received.put_nowait(Refusal(error))

    async def _read(self) -> transaction_pb2.CheckTransactionsResponse:
        async with asyncio.timeout(PATIENCE):
            received = await self._received.get()
        if isinstance(received, Refusal):
            self._received.put_nowait(received)
            raise received
        if received.HasField("check"):
            self._unread.append(received.check)
            self.seen.append(received.check)
        return received

    async def registered(self) -> None:
        assert (await self._read()).HasField("registered")

    async def next(self) -> transaction_pb2.TransactionCheck:
        """The next check."""
        while not self._unread:
            await self._read()
        return self._unread.pop(0)

    async def answer(
        self, check: transaction_pb2.TransactionCheck, verdict: transaction_pb2.CheckVerdict.ValueType, reason: str = ""
    ) -> transaction_pb2.TransactionResult | None:
        """Answers a check; what became of the verdict, None for UNKNOWN, which is not confirmed."""
        answer = transaction_pb2.CheckAnswer(
            transaction_id=check.transaction_id, check_number=check.check_number, verdict=verdict, reason=reason
        )
        await self._call.write(transaction_pb2.CheckTransactionsRequest(answer=answer))
        if verdict == UNKNOWN:
            return None
        while True:
            received = await self._read()
            if received.HasField("answered") and received.answered.result.transaction_id == check.transaction_id:
                return received.answered.result

    async def answer_all(
        self, ids: Iterable[str], verdict: transaction_pb2.CheckVerdict.ValueType
    ) -> list[transaction_pb2.TransactionCheck]:
        """Answers until each of these transactions was answered once; a slow machine is asked more often."""
        left, answered = set(ids), []
        while left:
            check = await self.next()
            result = await self.answer(check, verdict)
            assert result is not None
            assert not result.HasField("error"), result
            left.discard(check.transaction_id)
            answered.append(check)
        return answered

    async def answer_unknown(self) -> None:
        """Answers every check with UNKNOWN, without end."""
        while True:
            await self.answer(await self.next(), UNKNOWN)

    async def until(
        self, transaction_id: str, verdict: transaction_pb2.CheckVerdict.ValueType = UNKNOWN
    ) -> transaction_pb2.TransactionCheck:
        """Reads until this transaction is asked about; answers the others with `verdict`."""
        while True:
            check = await self.next()
            if check.transaction_id == transaction_id:
                return check
            await self.answer(check, verdict)

    async def ended(self) -> grpc.StatusCode:
        """Waits until the broker ends the stream; how."""
        while True:
            try:
                await self._read()
            except Refusal as ending:
                return ending.code

    async def leave(self) -> None:
        """Hangs up, as a producer that dies does."""
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


Pair: TypeAlias = tuple[Client, Client]
"""Connections to two brokers on one database."""
