"""Work that waits without a thread: it runs on the event loop, and gives the loop back while it waits.

A change between threads costs as much as a small statement. Work that may run in a thread or in a greenlet waits with
the functions of this module only.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import greenlet

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

Result = TypeVar("Result")


class Greenlet(greenlet.greenlet):
    """Runs a function on an event loop.

    Attributes:
        loop: the event loop.
        done: what the function returned or raised.
        executor: threads for what blocks; None: those of the event loop.
    """

    def __init__(self, work: Callable[[], Any], executor: Executor | None) -> None:
        """Takes the function, and threads for what blocks; `switch` starts it, on the running event loop."""
        super().__init__(self._run)
        self.executor = executor
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self._work = work
        self._home = greenlet.getcurrent()

    def wait(self) -> Any:
        """Gives the loop back; returns what a callback of the loop calls `switch` with."""
        return self._home.switch()

    def wait_for(self, future: asyncio.Future[Result]) -> Result:
        """Waits for a future of the loop; returns its result."""
        if not future.done():
            future.add_done_callback(self.switch)
            self.wait()
        return future.result()

    def _run(self) -> None:
        done, work = self.done, self._work
        # The traceback of an error refers to this frame, and must not refer to itself by it.
        del self._work, self
        try:
            result = work()
        except greenlet.GreenletExit:
            pass  # The loop was dropped while this waited.
        except BaseException as error:
            done.set_exception(error)
            del done, work
        else:
            done.set_result(result)


def start(work: Callable[[], Result], executor: Executor | None = None) -> asyncio.Future[Result]:
    """Runs work on the running event loop, at once up to where it first waits; returns a future of its result.

    Args:
        work: a function that waits as this module says.
        executor: threads for what blocks; None: those of the event loop.
    """
    begun = Greenlet(work, executor)
    begun.switch()
    return begun.done


def current() -> Greenlet | None:
    """The greenlet that this runs in; None in a thread, or on the event loop itself."""
    found = greenlet.getcurrent()
    return found if isinstance(found, Greenlet) else None


def pause(seconds: float) -> None:
    """Waits for so many seconds; 0 lets others run."""
    here = current()
    if here is None:
        time.sleep(seconds)
    else:
        here.loop.call_later(seconds, here.switch)
        here.wait()


def in_thread(work: Callable[[], Result]) -> Result:
    """Runs work that would block the event loop; in a thread it is called as it is."""
    here = current()
    return work() if here is None else here.wait_for(here.loop.run_in_executor(here.executor, work))
