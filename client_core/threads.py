"""Threads in users' programs, whose main thread may end before the others, and whose signal handlers may raise."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LastingThreads", "Wakeup"]

ParamT = ParamSpec("ParamT")
ResultT = TypeVar("ResultT")


class LastingThreads(ThreadPoolExecutor):
    """A ThreadPoolExecutor that takes calls until it is shut down.

    The standard library's refuses them from the end of the main thread on, although the program goes on for as long as
    other threads do: a check would then be answered with an error. Such calls get a thread of their own each.
    """

    _is_shut_down = False

    def submit(self, fn: Callable[ParamT, ResultT], /, *args: ParamT.args, **kwargs: ParamT.kwargs) -> Future[ResultT]:
        """Has a function called.

        Raises:
            RuntimeError: The threads are shut down.
        """
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if self._is_shut_down:
                raise
        future: Future[ResultT] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=call, name=self._thread_name_prefix, daemon=True).start()
        return future

    def shutdown(self, *args: Any, **options: Any) -> None:
        """As the standard library's."""
        self._is_shut_down = True
        super().shutdown(*args, **options)


class Wakeup:
    """Wakes one thread that waits, as an Event that the thread clears.

    An exception that a signal handler raises inside of Event.set() leaves the Event locked for ever. This has no lock
    that could stay behind.
    """

    def __init__(self) -> None:
        """Starts with nothing to wake for."""
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wakes the thread, now or when it waits the next time."""
        if self._calls.empty():
            self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Waits until it is woken, for so long at most; what it was woken for is to be done afterwards."""
        try:
            self._calls.get(timeout=max(0.0, seconds))
            while True:
                self._calls.get_nowait()
        except queue.Empty:
            return
