"""Batching without a timer: while one request is in flight, the next one is filled.

A lone item is sent at once. Under load a request takes all items that arrived meanwhile, so the batch size follows from
the broker's speed. A waiting item costs one future: no task, no retry machinery, no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from client_core.arguments import check_count
from client_core.connection.statuses import is_passing_item
from client_core.errors import BrokerFailed, HalfmqError, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

    from client_core.connection import RetryConfig
    from halfmq.v1.message_pb2 import ItemError

__all__ = ["BatchLimits", "Batcher", "ask", "is_passing", "outcomes_of"]


class ItemResult(Protocol):
    """Interface of the results of all batched calls."""

    @property
    def error(self) -> ItemError:
        """Why the item failed."""
        ...

    def HasField(self, field_name: Literal["error"], /) -> bool:  # noqa: N802 - protobuf's name
        """Whether it failed."""
        ...


# The brokers' limit, less the framing around the items.
_LARGEST_REQUEST = (32 << 20) - (64 << 10)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ItemResultT = TypeVar("ItemResultT", bound=ItemResult)
OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large requests grow, and how many are in flight.

    Attributes:
        items: Items in one request at most.
        size: Bytes of items in one request at most; a larger item is sent alone. No request exceeds 32 MiB.
        in_flight: Requests of one kind in flight at a time. With two, the broker has work while the client reads the
            last answer; more help if the network is slow compared with the broker. Messages of ``send_many``, and those
            with a message group, are still sent in one request at a time, in the order of the calls.
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


@dataclass(slots=True, eq=False)
class _Entry(Generic[ItemT, ResultT]):
    item: ItemT
    size: int
    shared: str
    order: Hashable | None
    future: asyncio.Future[ResultT]


@dataclass(slots=True, eq=False)
class _Line(Generic[ItemT, ResultT]):
    """Items that wait behind one that is being resent: those refused with it, and those submitted later."""

    front: asyncio.Future[ResultT]
    refused: list[tuple[_Entry[ItemT, ResultT], ResultT]] = field(default_factory=list)
    behind: list[_Entry[ItemT, ResultT]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Batcher(Generic[ItemT, ResultT]):
    """Gathers items of one kind into requests."""

    def __init__(
        self,
        send: Callable[[list[ItemT], str], Awaitable[Sequence[ResultT]]],
        limits: BatchLimits | None = None,
        passing: Callable[[ResultT], bool] | None = None,
    ) -> None:
        """Sends nothing yet.

        Args:
            send: Sends one request and returns one result per item, in order; its exception becomes that of every item.
                Its second argument is the items' shared value.
            limits: How large requests grow; None: the defaults of BatchLimits.
            passing: Whether a result means that its item is to be resent. Items of the same order then wait for it;
                requires limits with one request in flight.
        """
        self._send = send
        self._limits = limits or BatchLimits()
        self._passing = passing
        self._waiting: deque[_Entry[ItemT, ResultT]] = deque()
        self._lines: dict[Hashable, _Line[ItemT, ResultT]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._active = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(
        self, item: ItemT, size: int, shared: str = "", order: Hashable | None = None
    ) -> asyncio.Future[ResultT]:
        """Adds an item to the next request.

        Args:
            item: What to send.
            size: Its size in bytes, about.
            shared: A value that all items of a request must have in common, such as a reason that is sent once.
            order: Key of items that keep their order; None: it has none, or is the first of its queue.

        Returns:
            A future of the item's result. Cancelling it before the item is sent withdraws the item.
        """
        loop = self._loop or self._bind()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._waiting.append(_Entry(item, size, shared, order, future))
        self._start(loop)
        return future

    def is_in_front(self, future: asyncio.Future[ResultT], order: Hashable) -> bool:
        """Whether others of its order wait until `finished` is called for the item of this future."""
        line = self._lines.get(order)
        return line is not None and line.front is future

    def finished(self, future: asyncio.Future[ResultT], order: Hashable, *, in_vain: bool) -> None:
        """Releases the items that wait behind an item.

        Args:
            future: What `submit` returned for it at first.
            order: Its order.
            in_vain: It was resent as long as allowed, without success. Items refused with it then fail too; the rest
                has not been tried.
        """
        if not self.is_in_front(future, order):
            return
        line = self._lines.pop(order)
        line.over.set()
        if in_vain:
            for entry, result in line.refused:
                if not entry.future.done():
                    entry.future.set_result(result)
            following = line.behind
        else:
            following = [*(entry for entry, _ in line.refused), *line.behind]
        following = [entry for entry in following if not entry.future.done()]
        if following:
            self._waiting.extendleft(reversed(following))
            self._start(self._loop or self._bind())

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._active < self._limits.in_flight:
            self._active += 1
            # The task starts after all callbacks that are ready now, so items submitted together share a request.
            worker = loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def drain(self) -> None:
        """Waits until everything submitted so far has its result."""
        while self._workers or self._lines:
            if self._workers:
                await asyncio.wait(self._workers)
            for line in list(self._lines.values()):
                await line.over.wait()

    def _bind(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    async def _work(self) -> None:
        try:
            await self._send_all()
        finally:
            # Here and not in a callback of the task: an item submitted in between would find no worker and start none.
            self._active -= 1

    async def _send_all(self) -> None:
        while self._waiting:
            entries = self._take()
            if not entries:
                continue
            futures = [entry.future for entry in entries]
            try:
                results = await self._send([entry.item for entry in entries], entries[0].shared)
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
                for entry, result in zip(entries, results, strict=True):
                    if not entry.future.done() and not self._stands_in_line(entry, result):
                        entry.future.set_result(result)

    def _stands_in_line(self, entry: _Entry[ItemT, ResultT], result: ResultT) -> bool:
        """Queues an item that is to be resent behind another one, or others behind this one."""
        if entry.order is None or self._passing is None or not self._passing(result):
            return False
        line = self._lines.get(entry.order)
        if line is None:
            # Here and not in the waiter of the result: the next request is filled before that runs.
            self._lines[entry.order] = _Line(entry.future)
            return False
        line.refused.append((entry, result))
        return True

    def _take(self) -> list[_Entry[ItemT, ResultT]]:
        waiting, room = self._waiting, min(self._limits.size, _LARGEST_REQUEST)
        entries: list[_Entry[ItemT, ResultT]] = []
        while waiting and len(entries) < self._limits.items:
            entry = waiting[0]
            line = self._lines.get(entry.order) if self._lines and entry.order is not None else None
            if line is None and entries and (entry.size > room or entry.shared != entries[0].shared):
                break
            waiting.popleft()
            if entry.future.cancelled():
                continue
            if line is not None:
                line.behind.append(entry)
                continue
            entries.append(entry)
            room -= entry.size
        return entries

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
    batcher: Batcher[ItemT, ItemResultT],
    retry: RetryConfig,
    item: ItemT,
    size: int,
    shared: str = "",
    order: Hashable | None = None,
) -> ItemResultT:
    """Sends an item, and resends it alone if the broker answers that it cannot process this item just now.

    Until it is settled, later items of the same order wait.

    Returns:
        The item's result, which may still carry an error.

    Raises:
        RequestRefused: The item is larger than a request may be; it is not sent.
    """
    if size > _LARGEST_REQUEST:
        msg = f"{size} bytes in one request; 32 MiB are allowed: store large content elsewhere and send its key"
        raise RequestRefused(msg, reason="BODY_TOO_LARGE", field="body")
    first = batcher.submit(item, size, shared, order)
    in_vain = False
    try:
        result = await first
        # It was not the first of its queue, and was permanently refused together with that one.
        if is_passing(result) and (order is None or batcher.is_in_front(first, order)):

            async def again() -> ItemResultT:
                return await batcher.submit(item, size, shared)

            in_vain = True
            result = await retry.repeating(is_passing)(again)
            in_vain = is_passing(result)
    except asyncio.CancelledError:
        in_vain = False  # Its caller cancelled it; the others' did not.
        raise
    finally:
        if order is not None:
            batcher.finished(first, order, in_vain=in_vain)
    return result


async def outcomes_of(
    asked: Iterable[Awaitable[ResultT]], read: Callable[[ResultT], OutcomeT]
) -> list[OutcomeT | HalfmqError]:
    """Waits for the results of several items; the error of one does not hide the results of the others.

    Args:
        asked: What to wait for.
        read: Converts a result to an outcome, or raises the broker's error.

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


def is_passing(result: ItemResult) -> bool:
    """Whether the same item may succeed when it is resent."""
    return result.HasField("error") and is_passing_item(result.error)
