"""A broker inside this process, for tests and small tools."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from broker.app import Broker
from broker.config import BrokerConfig
from broker.errors import BrokerError

if TYPE_CHECKING:
    from types import TracebackType


class EmbeddedBroker:
    """A broker inside this process, on embedded storage, for tests and small tools.

    A context manager; it runs on a thread of its own, so synchronous and asyncio code can both use it.
    """

    def __init__(self, data_dir: Path | None = None, *, auto_create: bool = True, **settings: Any) -> None:
        """Takes a folder for the data (a temporary one when not given) and settings of BrokerConfig."""
        self._temporary = None if data_dir else tempfile.TemporaryDirectory(prefix="halfmq-")
        folder = Path(self._temporary.name) if self._temporary else Path(data_dir or "")
        settings.setdefault("database", f"sqlite:///{folder / 'halfmq.db'}")
        settings.setdefault("listen", "127.0.0.1:0")
        settings.setdefault("drain", 1.0)
        self._broker = Broker(BrokerConfig(auto_create=auto_create, **settings))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="halfmq-broker", daemon=True)

    @property
    def endpoint(self) -> str:
        """Where clients reach the broker."""
        return self._broker.endpoint

    def start(self) -> Self:
        """Starts serving.

        Raises:
            ConfigurationError: a setting is not usable.
        """
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop).result()
        except BaseException:
            self._end()
            raise
        return self

    def stop(self) -> None:
        """Stops serving and drops a temporary folder."""
        try:
            with contextlib.suppress(BrokerError):
                asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result()
        finally:
            self._end()

    def __enter__(self) -> Self:
        """Starts serving."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops serving."""
        self.stop()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._temporary is not None:
            self._temporary.cleanup()
