"""Work that a cancellation must not leave half done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["to_its_end"]

ResultT = TypeVar("ResultT")

_GRACE = 1.0
"""Seconds that work has to fail by itself after what it waits for was cut."""
_LAST = 5.0
"""Seconds that it has to end after it was cancelled."""


async def to_its_end(
    work: Awaitable[ResultT],
    within: float | None = None,
    cut: Callable[[], object] | None = None,
    *,
    from_cancellation: bool = False,
) -> ResultT:
    """Waits for work on a connection however often the task is cancelled meanwhile: none may be left half way.

    Args:
        work: It.
        within: Seconds that it may take before it is broken off: by ``cut``, and a second later by a cancellation, as
            work that lost its place in a stream of bytes does not even notice that this ends. None: any time.
        cut: Ends the connection.
        from_cancellation: The seconds count from a cancellation; without one the work may take any time.

    Raises:
        CancelledError: The task was cancelled; the work is done all the same.
        TimeoutError: The work was broken off.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    until = loop.time() + within if within is not None and not from_cancellation else None
    steps = [(_GRACE, cut or _nothing), (_LAST, task.cancel)]
    is_left = False
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and not is_left:
        try:
            await asyncio.wait({task}, timeout=None if until is None else max(0.0, until - loop.time()))
        except asyncio.CancelledError as error:
            cancelled = error
            if until is None and within is not None:
                until = loop.time() + within
            continue
        if not task.done() and until is not None and loop.time() >= until:
            if steps:
                seconds, step = steps.pop(0)
                step()
                until = loop.time() + seconds
            else:
                is_left = True
    if is_left or task.cancelled() or cancelled is not None:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    if cancelled is not None:
        raise cancelled
    if is_left or (not steps and task.cancelled()):
        msg = f"no answer came within {within} s: the connection was ended"
        raise TimeoutError(msg)
    return task.result()


def _nothing() -> None:
    return
