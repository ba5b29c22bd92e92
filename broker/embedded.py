"""A broker inside this process, for tests and small tools."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from broker.app import Broker
from broker.config import BrokerConfig
from broker.errors import BrokerError, ConfigurationError
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer
from broker.storage.engine.dialects.sqlite import IN_MEMORY
from broker.storage.migrations import creating as _  # noqa: F401 - loaded with this module, not at the first start

if TYPE_CHECKING:
    from types import TracebackType


class EmbeddedBroker:
    """A broker inside this process, on SQLite in memory, for tests and small tools.

    A context manager; it runs on its own thread, so synchronous and asyncio code can both use it. Its data is lost when
    it stops, unless it has a folder or a database.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        auto_create: bool = True,
        observer: Observer = NO_OBSERVER,
        tracer: Tracer = NO_TRACER,
        **settings: Any,
    ) -> None:
        """Takes a folder to keep the data in (None: in memory) and settings of BrokerConfig, such as `database`.

        Raises:
            ConfigurationError: the folder does not exist, or a database is given, too.
        """
        if data_dir is not None and "database" in settings:
            raise ConfigurationError("data_dir and database are both given; one of them is enough.", field="data_dir")
        if data_dir is not None and not Path(data_dir).is_dir():
            raise ConfigurationError(f"data_dir {str(data_dir)!r} is no existing folder; create it.", field="data_dir")
        if data_dir is not None:
            settings.setdefault("database", f"sqlite:///{Path(data_dir) / 'halfmq.db'}")
        elif "database" not in settings:
            settings.update(database=f"sqlite:///{IN_MEMORY}", allow_unsafe_database=True)
        settings.setdefault("listen", "127.0.0.1:0")
        settings.setdefault("drain", 1.0)
        self._broker = Broker(BrokerConfig(auto_create=auto_create, **settings), observer, tracer=tracer)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="halfmq-broker", daemon=True)

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return self._broker.endpoint

    @property
    def admin_endpoint(self) -> str:
        """The address for operators; empty unless `admin_listen` is set."""
        return self._broker.admin_endpoint

    @property
    def metrics_endpoint(self) -> str:
        """The address for metrics; empty unless `metrics_listen` is set."""
        return self._broker.metrics_endpoint

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
        """Stops serving."""
        # When the interpreter ends, or in a forked child, the thread is gone, and no call on its loop would return.
        if self._loop.is_closed() or sys.is_finalizing() or not self._thread.is_alive():
            return
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
