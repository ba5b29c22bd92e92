"""The base of the synchronous admin client: runs the asynchronous one on a background event loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

from client_core.admin.async_admin import AsyncAdmin
from client_core.connection import BackgroundRunner
from client_core.errors import ClientClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from types import TracebackType

    from client_core.connection import Endpoint, RetryConfig, TlsConfig

__all__ = ["AdminRunner"]

FoundT = TypeVar("FoundT")


class AdminRunner:
    """Owns the asynchronous client and its event loop."""

    def __init__(self, endpoint: Endpoint, *, retry: RetryConfig | None = None, tls: TlsConfig | None = None) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._core = AsyncAdmin(endpoint, retry=retry, tls=tls)
        self._runner = BackgroundRunner("Admin")

    def close(self) -> None:
        """Closes the connections. Safe to repeat."""
        try:
            if self._runner.started:
                self._runner.run(self._core.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        """Does nothing: connections are made by the first call."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connections."""
        self.close()

    def _each(self, source: AsyncGenerator[FoundT, None]) -> Iterator[FoundT]:
        async def step() -> FoundT | None:
            return await anext(source, None)

        try:
            while (found := self._runner.run(step())) is not None:
                yield found
        finally:
            # A client that was closed has ended it already.
            with suppress(ClientClosed):
                # A listing that was left half way may be collected as garbage by the loop's own thread.
                if self._runner.is_here:
                    self._runner.submit(_end(source))
                else:
                    self._runner.run(_end(source))


async def _end(source: AsyncGenerator[FoundT, None]) -> None:
    await source.aclose()
