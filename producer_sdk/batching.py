"""Batching without a timer: while one request is under way, the next one fills.

A lone item goes at once. Under load a request takes whatever came meanwhile, so batches grow exactly as far as the
broker's speed makes them. Waiting items cost one future each: no task, no retry machinery, no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from producer_sdk.connection.settings import check_count
from producer_sdk.connection.statuses import is_passing_item
from producer_sdk.errors import BrokerFailed, HalfmqError, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from halfmq.v1.message_pb2 import ItemError
    from producer_sdk.connection import RetryConfig

__all__ = ["BatchLimits", "Batcher", "ask", "outcomes_of"]


class ItemResult(Protocol):
    """What the results of all batched calls have in common."""

    @property
    def error(self) -> ItemError:
        """Why the item failed."""
        ...

    def HasField(self, field_name: Literal["error"], /) -> bool:  # noqa: N802 - protobuf's name
        """Whether it failed."""
        ...


# What brokers take, less the frame around the items.
_LARGEST_REQUEST = (32 << 20) - (64 << 10)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ItemResultT = TypeVar("ItemResultT", bound=ItemResult)
OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large requests grow, and how many are under way.

    Attributes:
        items: Items in one request at most.
        size: Bytes of items in one request at most; a larger item goes alone. No request grows beyond 32 MiB.
        in_flight: Requests of one kind under way at a time. With two, the broker has work while the client reads the
            last answer; more help where the network is slow compared with the broker. Messages of ``send_many``, and
            those with a message group, go in one request after the other all the same, in the order of the calls.
    """

    items: int = 128
    size: int = 4 << 20
    in_flight: int = 2

    def __post_init__(self) -> None:
        """Refuses settings that cannot work.

        Raises:
            ConfigurationError: A limit is not a positive whole number.
        """
        for name in ("items", "size", "in_flight"):
            check_count(f"BatchLimits.{name}", getattr(self, name))


class Batcher(Generic[ItemT, ResultT]):
    """Gathers items of one kind into requests."""

    def __init__(
        self, send: Callable[[list[ItemT], str], Awaitable[Sequence[ResultT]]], limits: BatchLimits | None = None
    ) -> None:
        """Sends nothing yet.

        Args:
            send: Sends one request and gives one result per item, in their order; its exception becomes that of every
                item. Its second argument is what the items of the request have in common.
            limits: How large requests grow; None: the defaults of BatchLimits.
        """
        self._send = send
        self._limits = limits or BatchLimits()
        self._waiting: deque[tuple[ItemT, int, str, asyncio.Future[ResultT]]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._active = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, item: ItemT, size: int, shared: str = "") -> asyncio.Future[ResultT]:
        """Adds an item to the next request.

        Args:
            item: What to send.
            size: Its size in bytes, about.
            shared: What all items of a request must have in common, such as a reason that is sent once.

        Returns:
            A future of the item's result. Cancelled before the item is on its way, it takes the item back.
        """
        loop = self._loop or self._bind()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._waiting.append((item, size, shared, future))
        if self._active < self._limits.in_flight:
            self._active += 1
            # The task begins after everything that is ready now has run: items of one moment share a request.
            worker = loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return future

    async def settle(self) -> None:
        """Waits until everything submitted so far has its result."""
        while self._workers:
            await asyncio.wait(self._workers)

    def _bind(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    async def _work(self) -> None:
        try:
            await self._send_all()
        finally:
            # Here and not in a callback of the task: an item that comes in between would find no worker and start none.
            self._active -= 1

    async def _send_all(self) -> None:
        while self._waiting:
            items, futures, shared = self._take()
            if not items:
                continue
            try:
                results = await self._send(items, shared)
            except Exception as error:
                self._fail(futures, error)
            except BaseException as error:
                self._fail(futures, error)
                raise
            else:
                if len(results) != len(futures):
                    msg = f"the broker answered {len(results)} results to {len(futures)} items; it breaks the protocol"
                    self._fail(futures, BrokerFailed(msg))
                    continue
                for future, result in zip(futures, results, strict=True):
                    if not future.done():
                        future.set_result(result)

    def _take(self) -> tuple[list[ItemT], list[asyncio.Future[ResultT]], str]:
        waiting, room = self._waiting, min(self._limits.size, _LARGEST_REQUEST)
        items: list[ItemT] = []
        futures: list[asyncio.Future[ResultT]] = []
        first_shared = waiting[0][2]
        while waiting and len(items) < self._limits.items:
            item, size, shared, future = waiting[0]
            if items and (size > room or shared != first_shared):
                break
            waiting.popleft()
            if future.cancelled():
                continue
            if not items:
                first_shared = shared
            items.append(item)
            futures.append(future)
            room -= size
        return items, futures, first_shared

    @staticmethod
    def _fail(futures: list[asyncio.Future[ResultT]], error: BaseException) -> None:
        for future in futures:
            if future.done():
                continue
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()


async def ask(
    batcher: Batcher[ItemT, ItemResultT], retry: RetryConfig, item: ItemT, size: int, shared: str = ""
) -> ItemResultT:
    """Sends an item, and again by itself if the broker answers that it cannot do this one item just now.

    Returns:
        The item's result, which may still carry an error.

    Raises:
        RequestRefused: The item is larger than a request may be; it is not sent.
    """
    if size > _LARGEST_REQUEST:
        msg = f"{size} bytes in one request; 32 MiB are allowed: store large content elsewhere and send its key"
        raise RequestRefused(msg, reason="BODY_TOO_LARGE", field="body")
    result = await batcher.submit(item, size, shared)
    if result.HasField("error") and is_passing_item(result.error):

        async def again() -> ItemResultT:
            return await batcher.submit(item, size, shared)

        return await retry.repeating(_is_passing)(again)
    return result


async def outcomes_of(
    asked: Iterable[Awaitable[ResultT]], read: Callable[[ResultT], OutcomeT]
) -> list[OutcomeT | HalfmqError]:
    """Waits for the results of several items; what became of one does not hide what became of the others.

    Args:
        asked: What to wait for.
        read: Makes an outcome of a result, or raises what the broker said of it.

    Returns:
        Their outcomes and errors, in their order.
    """
    outcomes: list[OutcomeT | HalfmqError] = []
    for result in await asyncio.gather(*asked, return_exceptions=True):
        try:
            if isinstance(result, BaseException):
                raise result
            outcomes.append(read(result))
        except HalfmqError as error:
            outcomes.append(error)
    return outcomes


def _is_passing(result: ItemResult) -> bool:
    return result.HasField("error") and is_passing_item(result.error)
