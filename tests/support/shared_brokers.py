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
        self._shared: dict[tuple[AnyKind, bool], BrokerProcess] = {}
        self._seconds: dict[AnyKind, BrokerProcess] = {}

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
        if (kind, default) not in self._shared:
            self._shared[kind, default] = BrokerProcess(self.database(kind), **({} if default else self._settings))
        return self._shared[kind, default]

    def second(self, kind: AnyKind) -> BrokerProcess:
        """Another broker on the database of the shared one; a file has one broker, so there it is the same."""
        first = self.shared(kind)
        if kind == "sqlite":
            return first
        if kind not in self._seconds:
            self._seconds[kind] = BrokerProcess(first.database, **{**self._settings, "broker_id": "second"})
        return self._seconds[kind]

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
        return made

    def close(self) -> None:
        """Ends the shared brokers; none may have met an error it did not expect."""
        kept = [*self._shared.values(), *self._seconds.values()]
        for broker in kept:
            broker.close()
        for url in self._on_servers:
            drop_database(url)
        shutil.rmtree(self._folder)
        for broker in kept:
            assert broker.process.returncode == 0, broker.log
            assert broker.count("[error") == 0, broker.log


_OF_FOLDER = pytest.StashKey[Brokers]()
