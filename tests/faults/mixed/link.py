"""LossyLink for tests without an event loop of their own."""

from __future__ import annotations

import asyncio
import threading

from acceptance.lossy_link import LossyLink


class ClientLink:
    """A TCP proxy between clients and a broker, in a thread of its own."""

    def __init__(self, broker: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client-link", daemon=True)
        self._thread.start()
        self._link = LossyLink(broker)
        asyncio.run_coroutine_threadsafe(self._link.__aenter__(), self._loop).result(10)
        self.endpoint = self._link.endpoint

    def lose_answers(self) -> None:
        """From now on nothing comes back from the broker."""
        self._loop.call_soon_threadsafe(self._link.lose_answers)

    def forget(self) -> None:
        """Connections of now carry nothing more, and do not end; those that come after do."""
        self._loop.call_soon_threadsafe(self._link.forget)

    def cut(self) -> None:
        """Ends all connections; those that come after are whole."""
        self._loop.call_soon_threadsafe(self._link.cut)

    def close(self) -> None:
        """Ends all connections, and takes no more."""
        asyncio.run_coroutine_threadsafe(self._link.__aexit__(None, None, None), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
