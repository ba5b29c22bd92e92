"""Databases, and brokers that tests share with names of their own in them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from support.brokers import BrokerProcess
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from pathlib import Path

    from support.databases import AnyKind


KEPT = 3
"""As many shared brokers run at a time, unless one test needs more: idle ones take processor time as well."""


class Brokers:
    """Databases, and the brokers that are kept from test to test."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Nothing is started yet.

        Args:
            folder: Where SQLite's files go.
            settings: Those of the shared brokers.
        """
        self._folder = folder
        self._settings = settings
        self._on_servers: list[str] = []
        self._databases: dict[tuple[AnyKind, str], str] = {}
        self._running: dict[tuple[AnyKind, str], BrokerProcess] = {}
        self._in_use: set[tuple[AnyKind, str]] = set()

    def database(self, kind: AnyKind) -> str:
        """The URL of an empty database."""
        if kind == "sqlite":
            number = len(list(self._folder.iterdir()))
            folder = self._folder / str(number)
            folder.mkdir()
            return f"sqlite:///{folder / 'halfmq.db'}"
        self._on_servers.append(create_database(server_url(kind)))
        return self._on_servers[-1]

    def shared(self, kind: AnyKind, *, default: bool = False) -> BrokerProcess:
        """The broker that tests of this database share; `default`: another one, with the default times."""
        if default:
            return self._kept(kind, "default", "default", {})
        return self._kept(kind, "shared", "shared", self._settings)

    def second(self, kind: AnyKind) -> BrokerProcess:
        """Another broker on the database of the shared one; a file has one broker, so there it is the same."""
        if kind == "sqlite":
            return self.shared(kind)
        return self._kept(kind, "second", "shared", {**self._settings, "broker_id": "second"})

    def _kept(self, kind: AnyKind, name: str, database: str, settings: dict[str, Any]) -> BrokerProcess:
        broker = self._running.pop((kind, name), None)
        if broker is None:
            if (kind, database) not in self._databases:
                self._databases[kind, database] = self.database(kind)
            self._end_idle(KEPT - 1)
            broker = BrokerProcess(self._databases[kind, database], **settings)
        # The one that was used last is the last.
        self._running[kind, name] = broker
        self._in_use.add((kind, name))
        return broker

    def _end_idle(self, most: int) -> None:
        """Ends those that were not used for longest, until so many are left."""
        idle = [each for each in self._running if each not in self._in_use]
        ended = [self._running.pop(each) for each in idle[: max(0, len(self._running) - most)]]
        for broker in ended:
            broker.close()
        for broker in ended:
            assert broker.process.returncode == 0, broker.log
            assert broker.count("[error") == 0, broker.log

    @classmethod
    def of_folder(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, **settings: Any
    ) -> Brokers:
        """Those of all tests in the test's folder; they end with the last one, because idle ones take time as well."""
        folder = request.node.getparent(pytest.Dir)
        made: Brokers | None = folder.stash.get(_OF_FOLDER, None)
        if made is None:
            made = folder.stash[_OF_FOLDER] = cls(tmp_path_factory.mktemp("brokers"), **settings)

            def end() -> None:
                folder.stash[_OF_FOLDER].close()
                del folder.stash[_OF_FOLDER]

            folder.addfinalizer(end)
        made._in_use.clear()
        return made

    def close(self) -> None:
        """Ends the shared brokers; none may have met an error it did not expect."""
        self._in_use.clear()
        self._end_idle(0)
        for url in self._on_servers:
            drop_database(url)
        shutil.rmtree(self._folder)


_OF_FOLDER = pytest.StashKey[Brokers]()
