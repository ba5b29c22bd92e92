"""Where the mixed faults happen: a database server of its own, and brokers between two proxies each.

    clients -> ClientLink -> broker -> MySqlProxy -> server on a small disk, with a clock that can be set

The embedded database has one broker, no proxy to it, and the machine's clock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from faults.client import PATIENCE, Client
from faults.load import CHECKS
from faults.mixed.disk import SmallDisk
from faults.mixed.link import ClientLink
from faults.mysql_proxy import MySqlProxy
from support.brokers import BrokerProcess
from support.databases import AnyKind, connect, create_database, in_ci
from support.private_servers import PrivateServer
from support.sessions import processlist

if TYPE_CHECKING:
    from types import TracebackType

# Little, so that clients see what happens.
BROKER = {**CHECKS, "reconnect_timeout": 2, "answer_timeout": 8}
DISK_MEGABYTES = 1536
USER, PASSWORD = "shop", "of its own"
_FAKE_TIME = Path("/usr/lib")
_OFF = "of nobody"


class Station:
    """A broker with its proxies; it comes back at the same address."""

    def __init__(self, database: str, *, embedded: bool) -> None:
        self.proxy = None if embedded else MySqlProxy.to(database)
        self._database = database
        if self.proxy is not None:
            self.proxy.__enter__()
            self._database = self.proxy.url(database)
        self.changing = threading.Lock()
        self.broker = BrokerProcess(self._database, **BROKER)
        self.logs: list[str] = []
        self.link = ClientLink(self.broker.endpoint)

    def kill(self) -> None:
        """SIGKILL; its log is kept."""
        self.broker.kill()
        self.broker.close()
        self.logs.append(self.broker.log)

    def start(self, patience: float = 60.0) -> None:
        """Starts it again; while its database is away it refuses to."""
        until = time.monotonic() + patience
        while True:
            try:
                self.broker = BrokerProcess(self._database, listen=self.broker.endpoint, **BROKER)
            except pytest.fail.Exception:
                if time.monotonic() > until:
                    raise
            else:
                return

    def errors(self) -> list[str]:
        """Errors in its log since the last time."""
        logs, self.logs = [*self.logs, self.broker.log], []
        found = [line for log in logs for line in log.splitlines() if "[error" in line]
        with self.broker._said:  # what was seen is not shown again
            self.broker.lines.clear()
        return found

    def close(self) -> None:
        """Ends all of it."""
        self.broker.close()
        self.link.close()
        if self.proxy is not None:
            self.proxy.close()


class Site:
    """A context manager. `heal` is for the end of a cycle: everything works again then."""

    def __init__(self, kind: AnyKind, folder: Path) -> None:
        self.kind = kind
        self.server: PrivateServer | None = None
        self.stations: list[Station] = []
        self._folder = folder
        self._closing = contextlib.ExitStack()
        self._clock = folder / "clock"
        self.starting = threading.Lock()

    @property
    def embedded(self) -> bool:
        """Whether the database is a file."""
        return self.kind == "sqlite"

    @property
    def endpoints(self) -> list[str]:
        """Where clients reach the brokers."""
        return [station.link.endpoint for station in self.stations]

    def client(self, number: int = 0) -> Client:
        """A client of a broker, past its proxy."""
        return Client(self.stations[number % len(self.stations)].broker.endpoint)

    def __enter__(self) -> Self:
        """Starts the server and the brokers."""
        with contextlib.ExitStack() as started:
            self.disk = started.enter_context(SmallDisk(self._folder / "disk", DISK_MEGABYTES))
            assert self.disk.small or not in_ci(), "a disk to be filled cannot be mounted here"
            if self.embedded:
                self.database = f"sqlite:///{self.disk.folder / 'halfmq.db'}"
            else:
                self.server = started.enter_context(PrivateServer(self.kind, self.disk.folder, self._variables()))  # type: ignore[arg-type]
                self.database = self._own_database()
            for _ in range(1 if self.embedded else 2):
                self.stations.append(Station(self.database, embedded=self.embedded))
                started.callback(self.stations[-1].close)
            self._closing = started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all of it."""
        self._closing.close()

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Runs statements on the server as an administrator; the rows of the last one."""
        assert self.server is not None
        with connect(self.server.url, autocommit=True, connect_timeout=10, read_timeout=60) as connection:
            for statement in statements:
                cursor = connection.cursor()
                cursor.execute(statement)
        return list(cursor.fetchall())

    def kill_connections(self, keep_every: int = 0) -> int:
        """Ends connections of the brokers, all but every so-manieth; how many."""
        ((version,),) = self.run("SELECT VERSION()")
        found = self.run(f"SELECT id FROM {processlist(str(version))} WHERE user = '{USER}' ORDER BY id")
        killed = [row[0] for number, row in enumerate(found, 1) if not keep_every or number % keep_every]
        for session in killed:
            with contextlib.suppress(Exception):  # it has just ended by itself
                self.run(f"KILL {session}")
        return len(killed)

    def refuse_log_ins(self) -> None:
        """The brokers' password is another one from now on."""
        self._set_password(_OFF)

    def take_log_ins(self) -> None:
        """It is what it was."""
        self._set_password(PASSWORD)

    def set_read_only(self, *, on: bool) -> None:
        """Whether the server takes writes of ordinary users."""
        names = ("read_only", "super_read_only") if self.kind == "mysql" else ("read_only",)
        self.run(*[f"SET GLOBAL {name} = {int(on)}" for name in (names if on else reversed(names))])

    def start_server(self) -> None:
        """Starts the server where it ended; on a full disk none starts, and whoever frees it comes here again."""
        with self.starting:
            if self.server is not None and not self.server.running and not self.disk.full:
                self.server.start()

    def _set_password(self, password: str) -> None:
        self.run(f"ALTER USER '{USER}'@'%' IDENTIFIED BY '{password}'")

    @property
    def clock_can_be_set(self) -> bool:
        """Whether the server's clock is another one than the machine's."""
        return self.kind == "mysql" or self._clock.exists()

    def set_clock(self, seconds: int) -> None:
        """How far the server's clock is ahead of the machine's; MariaDB reads it every few seconds.

        MySQL asks for the time so often that a changeable clock costs most of its speed; there the proxies change what
        brokers ask.
        """
        if self.kind == "mariadb":
            self._clock.write_text(f"{seconds:+d}\n")
        for station in self.stations if self.kind == "mysql" else []:
            if station.proxy is not None:
                station.proxy.clock = seconds

    def heal(self) -> None:
        """Whatever was done is undone; brokers that ended by themselves stay as they are, which `judge` will tell."""
        self.disk.free()
        if self.server is not None:
            if self.clock_can_be_set:
                self.set_clock(0)
            self.start_server()
            self.server.thaw()
        for station in self.stations:
            if station.proxy is not None:
                station.proxy.clear()
                station.proxy.resume()

    def await_health(self) -> None:
        """Waits until every broker answers an operator; a server that ended by itself since is started."""
        until = time.monotonic() + PATIENCE * 2
        for station in self.stations:
            while True:
                try:
                    with Client(station.broker.endpoint) as client:
                        client.topics()
                    break
                except Exception:
                    assert time.monotonic() < until, f"the broker does not come back:\n{station.broker.log}"
                    time.sleep(0.1)
                    self.start_server()

    def _variables(self) -> dict[str, str]:
        if self.kind == "mysql":
            return {}
        library = next(_FAKE_TIME.glob("*/faketime/libfaketimeMT.so.1"), None)
        assert library or not in_ci(), "needs the package faketime"
        if not library:
            return {}
        self.set_clock(0)
        return {
            "HALFMQ_DB_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "2",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def _own_database(self) -> str:
        """A database of a user who may not write where the server is read-only."""
        assert self.server is not None
        made = create_database(self.server.url)
        name = made.rpartition("/")[2]
        self.run(
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL PRIVILEGES ON {name}.* TO '{USER}'@'%'",
            "FLUSH PRIVILEGES",
        )
        return made.replace("halfmq:halfmq@", f"{USER}:{PASSWORD.replace(' ', '%20')}@")
