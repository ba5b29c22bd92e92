"""Consumers' streams that are read all the time: what came, when it came, and how the stream ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc

from acceptance.client import PATIENCE, Client, Refusal
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from google.protobuf.duration_pb2 import Duration

# Longer than any test: what comes again did not wait for the end of a lease.
LONG_LEASE = 3600.0


@dataclass(frozen=True)
class Arrival:
    """A delivery, and when it came by time.monotonic()."""

    delivery: consumer_pb2.Delivery
    at: float

    @property
    def body(self) -> str:
        return self.delivery.message.body.decode()


class Listener:
    """A consumer's stream; `acking`: it acknowledges everything at once. `received` counts the bytes of all answers."""

    def __init__(
        self,
        client: Client,
        group: str,
        *topics: str,
        credits: int = 10_000,  # noqa: A002 - the protocol's word
        lease: float = LONG_LEASE,
        acking: bool = False,
        **rest: Any,
    ) -> None:
        self._call: Any = client.consumer.Consume()
        subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=topics, **rest)
        subscribe.lease_duration.FromMicroseconds(int(lease * 1e6))
        self._first = consumer_pb2.ConsumeRequest(subscribe=subscribe)
        self._credits = credits
        self._acking = acking
        self._requests = 0
        self._subscribed = asyncio.Event()
        self._changed = asyncio.Condition()
        self._outcomes: dict[int, asyncio.Future[list[consumer_pb2.ReceiptResult]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.arrivals: list[Arrival] = []
        self.received = 0
        self.ending: Refusal | None = None

    async def __aenter__(self) -> Self:
        """Subscribes; waits until the broker said yes."""
        self._reader = asyncio.create_task(self._read())
        await self._call.write(self._first)
        await self.until(lambda: self._subscribed.is_set() or self.ending is not None)
        if self.ending is not None:
            await self.leave()
            raise self.ending
        # Not before: gRPC forgets why a stream was refused when it is still written to.
        if self._credits:
            await self.grant(self._credits)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Hangs up; what it holds stays leased."""
        self._call.cancel()
        assert self._reader is not None
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        ending = Refusal(None)
        try:
            async for response in self._call:
                await self._take(response)
        except grpc.aio.AioRpcError as error:
            ending = Refusal(error)
        except asyncio.CancelledError:
            ending.code = grpc.StatusCode.CANCELLED
        async with self._changed:
            self.ending = ending
            self._changed.notify_all()

    async def _take(self, response: consumer_pb2.ConsumeResponse) -> None:
        now = time.monotonic()
        self.received += response.ByteSize()
        if response.HasField("outcome"):
            self._outcomes.pop(response.outcome.request_id).set_result(list(response.outcome.results))
            return
        if response.HasField("subscribed"):
            self._subscribed.set()
        else:
            came = list(response.deliveries.deliveries)
            self.arrivals += [Arrival(each, now) for each in came]
            if self._acking:
                await self._say(ack=consumer_pb2.AckRequest(receipt_handles=[each.receipt_handle for each in came]))
        async with self._changed:
            self._changed.notify_all()

    async def _say(self, **event: Any) -> asyncio.Future[list[consumer_pb2.ReceiptResult]]:
        self._requests += 1
        answered: asyncio.Future[list[consumer_pb2.ReceiptResult]] = asyncio.get_running_loop().create_future()
        self._outcomes[self._requests] = answered
        await self._call.write(consumer_pb2.ConsumeRequest(request_id=self._requests, **event))
        return answered

    async def grant(self, messages: int) -> None:
        await self._call.write(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=messages)))

    @property
    def bodies(self) -> list[str]:
        return [each.body for each in self.arrivals]

    async def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Waits until something is so, looking at everything that comes."""
        async with asyncio.timeout(patience), self._changed:
            await self._changed.wait_for(condition)

    async def next(self, count: int = 1) -> list[consumer_pb2.Delivery]:
        """As many deliveries, which are then no longer among the arrivals."""
        await self.until(lambda: len(self.arrivals) >= count)
        came, self.arrivals = self.arrivals[:count], self.arrivals[count:]
        return [each.delivery for each in came]

    async def ended(self, patience: float = PATIENCE) -> Refusal:
        """Waits until the broker ends the stream; how."""
        await self.until(lambda: self.ending is not None, patience)
        assert self.ending is not None
        return self.ending

    async def settle(self, **event: Any) -> list[consumer_pb2.ReceiptResult]:
        """Sends ack=, nack= or extend=; a result per handle, empty where the broker said nothing of it."""
        async with asyncio.timeout(PATIENCE):
            said = {result.receipt_handle: result for result in await (await self._say(**event))}
        (request,) = event.values()
        asked = list(request.receipt_handles)
        assert set(said) <= set(asked)
        return [said.get(handle, consumer_pb2.ReceiptResult(receipt_handle=handle)) for handle in asked]

    async def ack(self, *deliveries: consumer_pb2.Delivery) -> None:
        results = await self.settle(ack=consumer_pb2.AckRequest(receipt_handles=handles(deliveries)))
        assert not [result for result in results if result.HasField("error")], results

    async def nack(
        self, *deliveries: consumer_pb2.Delivery, reason: str = "", delay: float | None = 0
    ) -> list[consumer_pb2.ReceiptResult]:
        request = consumer_pb2.NackRequest(receipt_handles=handles(deliveries), reason=reason)
        if delay is not None:
            request.delay.FromMicroseconds(int(delay * 1e6))
        results = await self.settle(nack=request)
        assert not [result for result in results if result.HasField("error")], results
        return results


def handles(deliveries: Sequence[consumer_pb2.Delivery]) -> list[str]:
    return [each.receipt_handle for each in deliveries]


def seconds(duration: Duration) -> float:
    return duration.ToMicroseconds() / 1e6


EARLIEST = message_pb2.Position(boundary=message_pb2.BOUNDARY_EARLIEST)
LATEST = message_pb2.Position(boundary=message_pb2.BOUNDARY_LATEST)


async def make_group(client: Client, name: str, *, delays: Sequence[float] = (), **settings: Any) -> str:
    """A group with settings of its own."""
    wanted = admin_pb2.ConsumerGroup(name=name, **settings)
    for delay in delays:
        wanted.retry_delays.add().FromMicroseconds(int(delay * 1e6))
    await client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    return name


async def progress(client: Client, group: str) -> list[admin_pb2.GroupProgress]:
    response = await client.call(client.admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group=group))
    return list(response.progress)


async def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool], patience: float = PATIENCE) -> Any:
    """Calls `look` again and again until what it gives is as wanted; nothing tells when that is."""
    until = time.monotonic() + patience
    while not wanted(found := await look()):
        assert time.monotonic() < until, f"still {found}"
        await asyncio.sleep(0.01)
    return found
