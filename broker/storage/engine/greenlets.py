"""Waiting in work that runs in a thread, or in a greenlet on the event loop.

A greenlet gives the event loop back while it waits, so that lone work needs no thread: a change between threads costs
as much as a small statement. Work that may run in either waits with these functions only.
"""

from __future__ import annotations

import asyncio
import select
import time
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Result = TypeVar("Result")


def pause(seconds: float) -> None:
    """Waits for so many seconds; 0 lets others run."""
    if in_greenlet():
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


def in_thread(work: Callable[[], Result]) -> Result:
    """Runs work that would block the event loop; in a thread it is called as it is."""
    if in_greenlet():
        return await_only(asyncio.to_thread(work))
    return work()


def wait_for_socket(own: socket.socket, timeout: float | None, *, writing: bool = False) -> None:
    """Waits until a non-blocking socket can be read, or written.

    Raises:
        TimeoutError: it could not within this many seconds.
    """
    if in_greenlet():
        ready = await_only(_readiness(own, timeout, writing))
    else:
        poll = select.poll()
        poll.register(own, select.POLLOUT if writing else select.POLLIN)
        ready = bool(poll.poll(None if timeout is None else timeout * 1000))
    if not ready:
        raise TimeoutError("timed out")


async def _readiness(own: socket.socket, within: float | None, writing: bool) -> bool:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    watch, leave = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    watch(own, _answer, ready, True)
    timer = None if within is None else loop.call_later(within, _answer, ready, False)
    try:
        return await ready
    finally:
        leave(own)
        if timer is not None:
            timer.cancel()


def _answer(ready: asyncio.Future[bool], value: bool) -> None:
    if not ready.done():
        ready.set_result(value)
