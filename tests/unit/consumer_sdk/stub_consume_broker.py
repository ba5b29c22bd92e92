"""A broker that delivers what a test wants and remembers what it was told; real gRPC over loopback."""

# ruff: noqa: N802 - the names are those of the protocol
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import grpc

from halfmq.v1 import consumer_pb2 as pb
from halfmq.v1 import consumer_pb2_grpc, message_pb2
from unit.producer_sdk.stub_broker import Failure, Signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


def handle(offset: int, lease: str = "1.a") -> str:
    return f"{lease}.{offset:x}"


class ConsumeSession:
    """The broker's end of one consume stream."""

    def __init__(self, stub: StubConsumeBroker) -> None:
        self._stub = stub
        self.subscribe: pb.Subscribe | None = None
        self.credits = 0
        self.most_credits = 0
        self.requests: list[pb.ConsumeRequest] = []
        self.outgoing: asyncio.Queue[pb.ConsumeResponse | Failure | None] = asyncio.Queue()
        self.half_closed = False

    def deliver(
        self,
        offsets: Iterable[int],
        lease: str = "1.a",
        message_group: str = "",
        attempt: int = 1,
        priority: int = 0,
        dedup_key: str = "",
        deliver_at: int = 0,
    ) -> None:
        batch = pb.DeliveryBatch()
        for offset in offsets:
            message = message_pb2.LogMessage(
                topic="orders",
                queue=2,
                offset=offset,
                body=f"body {offset}".encode(),
                tag="t",
                keys=["k"],
                properties={"a": "b"},
                message_group=message_group,
                priority=priority,
                dedup_key=dedup_key,
                message_id=f"id-{offset}",
                transaction_id="tx",
            )
            message.born_at.FromSeconds(1_700_000_000)
            message.stored_at.FromSeconds(1_700_000_001)
            if deliver_at:
                message.deliver_at.FromSeconds(deliver_at)
            batch.deliveries.add(
                message=message, receipt_handle=handle(offset, lease), attempt=attempt, last_error="before"
            )
        self.credits -= len(batch.deliveries)
        self.outgoing.put_nowait(pb.ConsumeResponse(deliveries=batch))

    def of(self, kind: str) -> list[pb.ConsumeRequest]:
        return [request for request in self.requests if request.WhichOneof("event") == kind]

    def handles(self, kind: str) -> list[str]:
        return [one for request in self.of(kind) for one in getattr(request, kind).receipt_handles]

    def answer(self, request: pb.ConsumeRequest) -> None:
        event = getattr(request, request.WhichOneof("event") or "")
        outcome = pb.ReceiptOutcome(request_id=request.request_id)
        for one in event.receipt_handles:
            result = outcome.results.add(receipt_handle=one)
            errors = self._stub.errors.get(one)
            if errors:
                code, reason = errors.pop(0)
                result.error.CopyFrom(message_pb2.ItemError(code=code.value[0], reason=reason, message=f"{reason}!"))
            elif request.WhichOneof("event") == "nack" and one in self._stub.dead:
                result.dead_letter.CopyFrom(message_pb2.LogPosition(topic="%DLQ%g", offset=9, message_id="id"))
        self.outgoing.put_nowait(pb.ConsumeResponse(outcome=outcome))

    def end(self) -> None:
        self.outgoing.put_nowait(None)

    def fail(self, code: grpc.StatusCode) -> None:
        self.outgoing.put_nowait(Failure(code))


class StubConsumeBroker(Signals, consumer_pb2_grpc.ConsumerServiceServicer):
    """Confirms everything unless it was told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint = ""
        self.sessions: list[ConsumeSession] = []
        self.refusal: Failure | None = None
        self.refusals = 0
        self.reads: list[pb.ReadQueueRequest] = []
        self.failures: list[Failure] = []
        self.lease_duration = 30.0
        self.answering = True
        self.heartbeat = False
        self.hangs = False
        self.deliver_first: Iterable[int] = ()
        self.errors: dict[str, list[tuple[grpc.StatusCode, str]]] = {}
        self.dead: set[str] = set()
        self.acks: list[pb.AckRequest] = []
        self.nacks: list[pb.NackRequest] = []

    async def __aenter__(self) -> Self:
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        consumer_pb2_grpc.add_ConsumerServiceServicer_to_server(self, self.server)
        port = self.server.add_insecure_port(self.endpoint or "127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{port}"
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    async def session(self, number: int = 0) -> ConsumeSession:
        """Waits until the n-th consume stream stands and has credits."""
        await self.until(
            lambda: len(self.sessions) > number and self.sessions[number].subscribe and self.sessions[number].credits
        )
        return self.sessions[number]

    async def Consume(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ConsumeResponse]:
        if self.refusal is not None:
            # All that the consumer says at first: gRPC calls it an internal error when a stream ends under a write.
            async for request in request_iterator:
                if request.WhichOneof("event") == "credits":
                    break
            self.refusals += 1
            await self.changed()
            await context.abort(*self.refusal)
        session = ConsumeSession(self)
        self.sessions.append(session)
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            while (response := await session.outgoing.get()) is not None:
                if isinstance(response, Failure):
                    await context.abort(response.code, response.details)
                yield response
        finally:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read(self, session: ConsumeSession, requests: Any) -> None:
        async for request in requests:
            kind = request.WhichOneof("event")
            if kind == "subscribe":
                session.subscribe = request.subscribe
                subscribed = pb.Subscribed(broker_id="stub", client_id=request.subscribe.client_id)
                subscribed.lease_duration.FromNanoseconds(int(self.lease_duration * 1e9))
                if self.heartbeat:
                    subscribed.heartbeat.CopyFrom(request.subscribe.heartbeat)
                if self.hangs:
                    await self.changed()
                    continue
                session.outgoing.put_nowait(pb.ConsumeResponse(subscribed=subscribed))
            elif kind == "credits":
                session.credits += request.credits.messages
                session.most_credits = max(session.most_credits, session.credits)
                if self.deliver_first:
                    session.deliver(self.deliver_first)
                    self.deliver_first = ()
            session.requests.append(request)
            if kind in {"ack", "nack", "extend"} and self.answering:
                session.answer(request)
            await self.changed()
        session.half_closed = True
        session.end()
        await self.changed()

    async def Pull(self, request: Any, context: Any) -> AsyncIterator[pb.PullResponse]:
        yield pb.PullResponse()

    async def Ack(self, request: Any, context: Any) -> pb.AckResponse:
        self.acks.append(request)
        return pb.AckResponse(results=[pb.ReceiptResult(receipt_handle=one) for one in request.receipt_handles])

    async def Nack(self, request: Any, context: Any) -> pb.NackResponse:
        self.nacks.append(request)
        await self.changed()
        await self._fail(context)
        return pb.NackResponse(results=[pb.ReceiptResult(receipt_handle=one) for one in request.receipt_handles])

    async def ExtendLease(self, request: Any, context: Any) -> pb.ExtendLeaseResponse:
        return pb.ExtendLeaseResponse()

    async def ReadQueue(self, request: Any, context: Any) -> AsyncIterator[pb.ReadQueueResponse]:
        await self._fail(context)
        self.reads.append(request)
        for offset in range(request.offset, request.offset + request.max_messages):
            message = message_pb2.LogMessage(topic=request.topic, queue=request.queue, offset=offset, body=b"x")
            yield pb.ReadQueueResponse(messages=[message], next_offset=offset + 1, min_offset=1, max_offset=99)

    async def QueueOffsets(self, request: Any, context: Any) -> pb.QueueOffsetsResponse:
        await self._fail(context)
        queue = pb.QueueOffset(queue=0, min_offset=1, max_offset=99)
        if request.consumer_group:
            queue.lag = 3
            queue.lag_time.FromMilliseconds(1500)
        if request.HasField("time"):
            queue.offset_at_time = 42
        return pb.QueueOffsetsResponse(queues=[queue])

    async def _fail(self, context: Any) -> None:
        if self.failures:
            failure = self.failures.pop(0)
            await context.abort(*failure)
