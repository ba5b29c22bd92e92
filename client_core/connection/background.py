"""An event loop in its own thread, on which the synchronous clients run the asynchronous ones."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from client_core.errors import ClientClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__all__ = ["BackgroundRunner", "EventLoopThread", "is_own_cancellation"]

_log = logging.getLogger("halfmq.connection")

ResultT = TypeVar("ResultT")


_LOOK = 0.5
"""Seconds between two looks whether the loop is still there."""


def _closed() -> ClientClosed:
    return ClientClosed("this client was closed meanwhile; make a new one")


class _Call(Generic[ResultT]):
    """A coroutine on the loop, and a thread that waits for it.

    The loop waits for no lock that this thread takes: an exception of a signal handler can strike between any two of
    its instructions, and leave a lock behind; those of ``concurrent.futures`` are shared by both.
    """

    def __init__(self, thread: EventLoopThread, coroutine: Coroutine[Any, Any, ResultT]) -> None:
        self._thread, self._loop, self._coroutine = thread, thread.loop, coroutine
        self._task: asyncio.Task[ResultT] | None = None
        self._is_given_up = False
        self._ended = threading.Lock()
        self._ended.acquire()

    def start(self) -> None:
        """Begins; on the loop."""
        if self._is_given_up or self._thread.is_over:
            self._coroutine.close()
            self._ended.release()
            return
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[ResultT]) -> None:
        if not task.cancelled():
            task.exception()  # Somebody has looked at it.
        self._ended.release()

    def is_done(self, seconds: float) -> bool:
        """Waits for its end, for so long; asked until it has ended."""
        return self._ended.acquire(timeout=seconds)

    def result(self) -> ResultT:
        """What came of it."""
        if self._task is None:
            raise _closed()
        if self._task.cancelled():
            raise CancelledError
        return self._task.result()

    def give_up(self) -> None:
        """Nobody waits any more: it is cancelled."""
        self._is_given_up = True
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # The loop is closed.
            self._cancel()

    def _cancel(self) -> None:
        if self._task is None:
            self._coroutine.close()
        elif not self._loop.is_closed():
            self._task.cancel()


class EventLoopThread:
    """A daemon thread that runs an event loop.

    All synchronous clients of a process share one: gRPC wakes every loop of a process for every event, so a second one
    costs more than it gains.
    """

    _shared: EventLoopThread | None = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        """Starts the thread and waits until its loop runs."""
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._ending = False
        self.is_over = False
        """Whether nothing new begins."""
        running = threading.Event()
        self.loop.call_soon(running.set)
        self._thread = threading.Thread(target=self._run, name="halfmq-event-loop", daemon=True)
        self._thread.start()
        running.wait()

    @classmethod
    def acquire(cls) -> EventLoopThread:
        """Returns the thread of this process, started if need be; every user calls release() when done."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._users += 1
            return cls._shared

    def release(self) -> None:
        """Releases it; after the last user the thread ends."""
        with EventLoopThread._shared_lock:
            self._users -= 1
            if self._users > 0:
                return
            if EventLoopThread._shared is self:
                EventLoopThread._shared = None
        self.stop()

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's own thread."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine on the loop and waits for it; an interrupt of the wait cancels the coroutine.

        Raises:
            RuntimeError: Called on the loop's own thread, where waiting would never end.
        """
        if self.is_here:
            coroutine.close()
            msg = "a synchronous halfmq client cannot wait on its own event loop; use the Async client here"
            raise RuntimeError(msg)
        call = _Call(self, coroutine)
        try:
            self.post(call.start)
            while not call.is_done(_LOOK):
                if self._thread.is_alive():
                    continue
                if call.is_done(0.0):
                    break
                # What was scheduled behind the loop's last turn never runs.
                raise _closed()
        except BaseException:
            call.give_up()
            raise
        return call.result()

    def submit(self, coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Starts a coroutine on the loop.

        Raises:
            ClientClosed: The loop has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            if not self.loop.is_closed():
                raise
            raise _closed() from None

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedules a call on the loop.

        Raises:
            ClientClosed: The loop has ended.
        """
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            raise _closed() from None

    def stop(self) -> None:
        """Cancels running tasks, then ends the loop and the thread."""
        self.loop.call_soon_threadsafe(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._ending:
                self._survive(self.loop.run_forever)
            self.is_over = True
            rest = self.loop.create_task(_cancel_all())
            while not rest.done():
                self._survive(lambda: self.loop.run_until_complete(rest))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def _survive(self, run: Callable[[], object]) -> None:
        # SystemExit and KeyboardInterrupt of a task are raised out of the loop as well; the task's waiter gets them.
        try:
            run()
        except BaseException as error:
            _log.error("a task on the event loop of the halfmq clients raised %r; the loop goes on", error)

    def _end(self) -> None:
        self._ending = True
        self.loop.stop()

    @classmethod
    def forget(cls) -> None:
        """Drops the shared thread without stopping it: after a fork it exists only in the parent."""
        cls._shared = None
        cls._shared_lock = threading.Lock()


async def _cancel_all() -> None:
    await asyncio.sleep(0)  # What was scheduled last becomes a task.
    leftover = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftover:
        task.cancel()
    await asyncio.gather(*leftover, return_exceptions=True)


os.register_at_fork(after_in_child=EventLoopThread.forget)


def is_own_cancellation(error: BaseException) -> bool:
    """Whether an exception cancels the current task, rather than being raised by the application's code."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class BackgroundRunner:
    """One synchronous client's reference to the background loop: acquired at the first call, released by close()."""

    def __init__(self, what: str) -> None:
        """Acquires nothing yet.

        Args:
            what: The client's name in error messages, such as ``TransactionProducer``.
        """
        self._what = what
        self._lock = threading.Lock()
        self._thread: EventLoopThread | None = None
        self._process = os.getpid()
        self._closed = False

    @property
    def started(self) -> bool:
        """Whether anything ran yet."""
        return self._thread is not None

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of the loop, in which nothing can wait for it."""
        return self._thread is not None and self._thread.is_here

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine on the background loop and waits for its result.

        Raises:
            ClientClosed: The client was closed, or belongs to the process that this one was forked from.
        """
        try:
            thread = self._current()
        except BaseException:
            coroutine.close()
            raise
        return thread.run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Starts a coroutine on the background loop; its result is in the future.

        Raises:
            ClientClosed: As for run().
        """
        try:
            thread = self._current()
        except BaseException:
            coroutine.close()
            raise
        return thread.submit(coroutine)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedules a call on the background loop, without waiting for it.

        Raises:
            ClientClosed: As for run().
        """
        self._current().post(call, *args)

    def refuse_if_closed(self) -> None:
        """Raises unless the client can be used.

        Raises:
            ClientClosed: As for run().
        """
        if self._closed:
            msg = f"this {self._what} is closed; make a new one"
            raise ClientClosed(msg)
        if self._process != os.getpid():
            msg = f"this {self._what} was made before a fork; make one in each process"
            raise ClientClosed(msg)

    def close(self) -> None:
        """Releases the loop; later calls raise ClientClosed."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None and self._process == os.getpid():
            thread.release()

    def _current(self) -> EventLoopThread:
        # A forked child inherits the attribute but not the thread behind it.
        thread = self._thread if self._process == os.getpid() else None
        return thread or self._start()

    def _start(self) -> EventLoopThread:
        with self._lock:
            self.refuse_if_closed()
            if self._thread is None:
                self._thread = EventLoopThread.acquire()
            return self._thread
