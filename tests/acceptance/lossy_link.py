"""A TCP proxy between an SDK and its broker that can lose the broker's answers, and then the connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class LossyLink:
    """`lose_answers()`, wait until the broker has done its work, `cut()`: the client cannot know that it was done.

    `forget()` is a network that has lost its way: what is connected hears nothing any more, not even of an end.
    """

    def __init__(self, broker: str) -> None:
        self._host, _, self._port = broker.rpartition(":")
        self._lost = False
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def lose_answers(self) -> None:
        """From now on nothing comes back from the broker."""
        self._lost = True

    def forget(self) -> None:
        """Connections of now carry nothing more, in neither direction, and do not end; those that come after do."""
        self._forgotten |= self._connections

    def cut(self) -> None:
        """Ends all connections; those that come after are whole."""
        self._lost = False
        for writer in self._connections:
            writer.transport.abort()
        self._connections.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_read, to_write = await asyncio.open_connection(self._host, int(self._port))
        except OSError:  # the broker is gone
            writer.transport.abort()
            return
        self._connections |= {writer, to_write}
        for source, sink, answers in ((reader, to_write, False), (to_read, writer, True)):
            self._pipes.add(asyncio.create_task(self._pipe(source, sink, answers)))

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool) -> None:
        try:
            while data := await source.read(1 << 16):
                if not (answers and self._lost) and sink not in self._forgotten:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            return
        finally:
            sink.close()
