"""Follows a log: sessions one after the other, each from the position that the broker has, until it is stopped."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from client_core.connection import RetryConfig
from halfmq_connect.cdc.checks import check_position, check_server, check_tables
from halfmq_connect.cdc.database import Source
from halfmq_connect.cdc.errors import CdcError, Interrupted
from halfmq_connect.cdc.messages import TableChoice
from halfmq_connect.cdc.publishing import Progress, Publisher
from halfmq_connect.cdc.reading import LogReader
from halfmq_connect.cdc.sink import Sink
from halfmq_connect.cdc.snapshot.copying import Copies, copy_tables
from halfmq_connect.cdc.state import GoneTables, State
from halfmq_connect.cdc.tables import gone

if TYPE_CHECKING:
    from halfmq_connect.cdc.config import CdcSettings

__all__ = ["ChangeCapture", "check"]

_log = logging.getLogger("halfmq.cdc")
_PAUSES = RetryConfig(initial_backoff=0.2, maximum_backoff=10.0)
LOOK_SECONDS = 0.5


class ChangeCapture:
    """One subscription; run it in one thread, stop it from any."""

    def __init__(self, settings: CdcSettings, *, new_snapshot: bool = False) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            settings: The subscription.
            new_snapshot: Forget the recorded position, and begin with a new snapshot of all tables.
        """
        self.progress = Progress()
        self.interruptions = 0
        """Sessions that ended because a system did not answer."""
        self._settings = settings
        self._new_snapshot = new_snapshot
        self._choice = TableChoice(settings)
        self._stopping = threading.Event()
        self._host = 0
        self.following = threading.Event()
        """Set while the log is followed: the tables are copied."""

    def stop(self) -> None:
        """Ends `run` after what is being published; may be called from signal handlers."""
        self._stopping.set()

    def run(self) -> None:
        """Publishes until it is stopped, or cannot go on without losing something.

        Raises:
            WrongSetting, CannotFollow, TakenOver: The text says what to do.
        """
        sink = Sink(self._settings.connection(), self._settings.name, self._stopping.is_set)
        failures = 0
        try:
            while not self._stopping.is_set():
                before = self.progress.epochs
                try:
                    self._session(sink)
                except Interrupted as error:
                    failures = 1 if self.progress.epochs > before else failures + 1
                    self._host += 1
                    self.interruptions += 1
                    pause = _PAUSES.backoff(failures)
                    about = {"subscription": self._settings.name}
                    _log.warning("interrupted, on in %.1f s: %s", pause, error, extra=about)
                    self._stopping.wait(pause)
        finally:
            sink.close()

    def _session(self, sink: Sink) -> None:
        hosts = self._settings.database.hosts
        source = Source(self._settings.database, hosts[self._host % len(hosts)])
        try:
            check_server(source)
            tables = check_tables(source, self._settings, self._choice)
            stored = sink.claim()
            if stored is None or self._new_snapshot:
                state = State(source.executed())
                sink.commit([], state.encode(source.kind))
                self._new_snapshot = False
            else:
                state = State.decode(stored, source.kind, source.parse)
                check_position(source, state.position)
            copy_tables(self._settings, source, tables, self._choice, sink, state, self.progress, self._stopping.is_set)
            if not self._stopping.is_set():
                copies = Copies(source, tables, state)
                reader = LogReader(self._settings, source, state.position, self._choice, copies.ask)
                try:
                    self.following.set()
                    about = {"subscription": self._settings.name}
                    _log.info("following %s from %s on", source.host, state.position, extra=about)
                    forgetting = GoneTables(state, partial(gone, self._settings.database, source.host))
                    self._follow(
                        reader,
                        Publisher(self._settings.name, sink, state, source.kind, self.progress, forgetting),
                    )
                finally:
                    self.following.clear()
                    reader.close()
        finally:
            source.close()

    def _follow(self, reader: LogReader, publisher: Publisher) -> None:
        within = False
        while not self._stopping.is_set():
            try:
                pieces = reader.pieces.get(LOOK_SECONDS if not publisher.has_waiting else 0)
            except CdcError:
                if not within:  # What came before it is published.
                    publisher.end()
                raise
            if not pieces and not within:  # Another epoch would drop the parts of a large transaction.
                publisher.idle()
            for piece in pieces:
                publisher.take(piece)
                within = not piece.last
                if self._stopping.is_set():  # A large transaction that is not taken to its end is read again.
                    break
        publisher.end()


def check(settings: CdcSettings) -> list[str]:
    """Looks at everything that is looked at before a subscription begins; returns the names of the tables.

    Raises:
        CdcError: The text says what to do.
    """
    choice = TableChoice(settings)
    names: list[str] = []
    for host in settings.database.hosts:
        source = Source(settings.database, host)
        try:
            check_server(source)
            names = [table.name for table in check_tables(source, settings, choice)]
        finally:
            source.close()
    return names
