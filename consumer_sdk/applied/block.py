"""What the blocks ``applied.once(session, message)`` and ``applied.batch(session, messages)`` do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from client_core.local_database import AsyncLocalTransaction, LocalTransaction
    from consumer_sdk.applied.application import Application

__all__ = ["applying", "applying_async"]


@contextlib.contextmanager
def applying(local: LocalTransaction, application: Application) -> Iterator[None]:
    """Runs a block as the application's transaction; an exception rolls it back."""
    try:
        application.begin(local)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                local.rollback()
            raise
        try:
            application.end(local)
        except BaseException:
            # After a COMMIT without an answer too: the mark tells at the next delivery.
            with contextlib.suppress(Exception):
                local.rollback()
            raise
    finally:
        local.close()


@contextlib.asynccontextmanager
async def applying_async(joined: AsyncLocalTransaction, application: Application) -> AsyncIterator[None]:
    """The same on asyncio; a cancellation rolls it back."""
    try:
        await joined.run(application.begin)
        try:
            yield
            await joined.run(application.end)
        except BaseException:
            with contextlib.suppress(Exception):
                await joined.end(lambda local: local.rollback())
            raise
    finally:
        await joined.leave()
