"""Work that a cancellation must not leave half done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["to_its_end"]

ResultT = TypeVar("ResultT")


async def to_its_end(work: Awaitable[ResultT]) -> ResultT:
    """Waits for work on a connection however often the task is cancelled meanwhile: none may be left half way.

    Raises:
        CancelledError: The task was cancelled; the work is done all the same.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        raise cancelled
    return task.result()
