"""One response stream, several tasks that write to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

Response = TypeVar("Response")
MOST_ANSWERS = 64 << 10
"""Bytes of answers that wait in one stream."""
_OVERHEAD = 128
"""Bytes of one that waits, beside its content."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Generic[Response]):
    """A heartbeat and its interval.

    Attributes:
        interval: seconds of silence before it is sent.
        response: the heartbeat.
    """

    interval: float
    response: Response


class StreamWriter(Generic[Response]):
    """Collects the responses of tasks for the single generator that writes them.

    A writer waits until its response was written, so a client that does not read blocks only its own stream, and at
    most one response per task waits. Answers to what the client wrote wait by themselves, up to a bound: the task that
    reads goes on. Otherwise a client that writes an ack for what it has read before it reads on would stand still for
    ever, with the windows of both directions full.
    """

    def __init__(self, hold: Callable[[Response], Callable[[object], None] | None] | None = None) -> None:
        """Starts empty.

        Args:
            hold: Counts an answer that its writer waits for, as ResponseBudget.take does.
        """
        self._waiting: asyncio.Queue[tuple[Response, asyncio.Future[None] | int] | None] = asyncio.Queue()
        self._answers = 0
        self._hold = hold
        self._held: dict[int, Callable[[object], None]] = {}

    async def write(self, response: Response, unsent: Callable[[], Awaitable[None]] | None = None) -> None:
        """Writes a response; returns when the transport has accepted it.

        Args:
            response: The response.
            unsent: Called before this raises, if the transport did not accept the response.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((response, written))
        try:
            await written
        except asyncio.CancelledError:
            # The stream may end after it was accepted and before this task runs: it was sent nevertheless.
            if unsent is not None and written.cancelled():
                await asyncio.shield(unsent())
            raise

    async def answer(self, response: Response, size: int) -> None:
        """Writes an answer of so many bytes; returns at once where answers of less than 64 KiB wait.

        Raises:
            Overloaded: too much waits for clients to read it.
        """
        size += _OVERHEAD
        if self._answers + size > MOST_ANSWERS:
            give_back = self._hold(response) if self._hold is not None else None
            if give_back is not None:
                self._held[id(response)] = give_back
            try:
                await self.write(response)
            finally:
                self._give_back(response)
            return
        self._answers += size
        self._waiting.put_nowait((response, size))

    def _give_back(self, response: Response) -> None:
        if give_back := self._held.pop(id(response), None):
            give_back(None)

    def close(self) -> None:
        """Ends the stream after pending responses."""
        self._waiting.put_nowait(None)

    async def run(
        self, *work: Coroutine[object, object, None], heartbeat: Heartbeat[Response] | None = None
    ) -> AsyncIterator[Response]:
        """Runs the tasks and yields what they write, until one of them ends.

        Args:
            work: The tasks.
            heartbeat: Sent when they are silent.

        Raises:
            Exception: an exception of a task.
        """
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        for task in tasks:
            task.add_done_callback(lambda _: self.close())
        try:
            while True:
                try:
                    async with asyncio.timeout(None if heartbeat is None else heartbeat.interval):
                        entry = await self._waiting.get()
                except TimeoutError:
                    if heartbeat is not None:
                        yield heartbeat.response
                    continue
                if entry is None:
                    break
                response, written = entry
                # From here on it is counted as what the transport has.
                self._give_back(response)
                yield response
                if isinstance(written, int):
                    self._answers -= written
                elif not written.done():
                    written.set_result(None)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
