"""What goes wrong: each trouble begins, lasts for a while, and ends; several of them at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import pytest

from faults.mysql_proxy import Late, Then
from support.brokers import BrokerProcess
from support.databases import create_database, drop_database
from support.forking import ForkedCommand

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from faults.mixed.site import Site, Station
    from faults.mysql_proxy import MySqlProxy, Rule

# Where a broker holds locks: a queue, a half message, a group's progress, leases, an op record.
_STATEMENTS = ("UPDATE queue", "INTO half_message", "group_progress", "INTO lease", "INTO op_record", "INTO message")


class Trouble(ABC):
    """One of them, with what chance decides about it.

    Attributes:
        longest: seconds that it lasts at most, mostly.
    """

    longest: ClassVar[float] = 2.0

    def __init__(self, site: Site, fate: random.Random) -> None:
        self.site = site
        self.fate = fate
        self.station: Station = fate.choice(site.stations)
        self.lasts = fate.uniform(0.1, self.longest)

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.lasts:.1f} s"

    @classmethod
    def possible(cls, site: Site) -> bool:
        """Whether it can be had there."""
        return not site.embedded

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    @property
    def proxy(self) -> MySqlProxy:
        assert self.station.proxy is not None
        return self.station.proxy

    def again(self, work: Callable[[], object], patience: float = 90.0) -> None:
        """Does what an administrator does until the server takes it; one that ended by itself is started."""
        until = time.monotonic() + patience
        while True:
            try:
                work()
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
                self.site.start_server()
            else:
                return


class BrokerKilled(Trouble):
    """SIGKILL, and started again."""

    @classmethod
    def possible(cls, site: Site) -> bool:
        return True

    def begin(self) -> None:
        self.station.changing.acquire()
        self.station.kill()

    def end(self) -> None:
        try:
            self.station.start()
        finally:
            self.station.changing.release()


class BrokerFrozen(Trouble):
    """SIGSTOP at any moment: it is not dead, and comes back with what it believed."""

    longest = 4.0

    @classmethod
    def possible(cls, site: Site) -> bool:
        return True

    def begin(self) -> None:
        self.station.changing.acquire()
        self.station.broker.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.station.broker.process.send_signal(signal.SIGCONT)
        self.station.changing.release()


class BrokerFrozenWithLocks(Trouble):
    """SIGSTOP in the middle of a database transaction; now and then for longer than the server waits for it."""

    longest = 4.0

    def __init__(self, site: Site, fate: random.Random) -> None:
        super().__init__(site, fate)
        if fate.random() < 0.1:
            self.lasts = 18.0
        self.statement = fate.choice(_STATEMENTS)
        self._rule: Rule | None = None

    def begin(self) -> None:
        self.station.changing.acquire()
        process = self.station.broker.process
        self._rule = self.proxy.on_statement(
            self.statement, when="after", action=Then(lambda: process.send_signal(signal.SIGSTOP))
        )

    def end(self) -> None:
        if self._rule is not None:
            self.proxy.forget(self._rule)
        self.station.broker.process.send_signal(signal.SIGCONT)
        self.station.changing.release()


class BrokerVanished(BrokerFrozenWithLocks):
    """Cut off without a word in the middle of a database transaction; the server believes that it is there."""

    def begin(self) -> None:
        self.station.changing.acquire()
        self._rule = self.proxy.on_statement(self.statement, when="after", action=Then(self.proxy.pause))

    def end(self) -> None:
        if self._rule is not None:
            self.proxy.forget(self._rule)
        if self.fate.random() < 0.5:
            self.proxy.cut_all()
        self.proxy.resume()
        self.station.changing.release()


class CommitLate(Trouble):
    """The connection is lost at COMMIT, and the server gets the COMMIT some time later."""

    def __init__(self, site: Site, fate: random.Random) -> None:
        super().__init__(site, fate)
        self._rule: Rule | None = None

    def begin(self) -> None:
        late = Late(self.fate.uniform(0.05, 3.0))
        self._rule = self.proxy.on_commit(when="before", action=late, times=4, skip=self.fate.randrange(10))

    def end(self) -> None:
        if self._rule is not None:
            self.proxy.forget(self._rule)


class CommitCut(CommitLate):
    """The connection is lost at COMMIT, which took effect or not."""

    def begin(self) -> None:
        self._rule = self.proxy.on_commit(
            when=self.fate.choice(("before", "after")), action="cut", times=20, skip=self.fate.randrange(10)
        )


class RepliesLost(Trouble):
    """Clients hear nothing of their broker, which works on; then their connections end."""

    @classmethod
    def possible(cls, site: Site) -> bool:
        return True

    def begin(self) -> None:
        self.station.link.lose_answers()

    def end(self) -> None:
        self.station.link.cut()


class ConnectionsKilled(Trouble):
    """An administrator kills connections of the brokers, again and again."""

    def begin(self) -> None:
        until = time.monotonic() + self.lasts
        while time.monotonic() < until:
            with contextlib.suppress(Exception):  # the server may be away as well
                self.site.kill_connections(self.fate.choice((0, 2, 3)))
            time.sleep(self.fate.uniform(0.05, 0.5))
        self.lasts = 0.0

    def end(self) -> None:
        pass


class ServerKilled(Trouble):
    """SIGKILL of the database server, and started again."""

    longest = 1.0

    def begin(self) -> None:
        assert self.site.server is not None
        with self.site.starting:
            if self.site.server.running:
                self.site.server.kill()

    def end(self) -> None:
        self.site.start_server()


class ServerStalls(Trouble):
    """SIGSTOP of the database server: whoever asks it what time it is learns that late."""

    longest = 6.0

    def begin(self) -> None:
        assert self.site.server is not None
        self.site.server.freeze()

    def end(self) -> None:
        assert self.site.server is not None
        self.site.server.thaw()


class ClockJumps(Trouble):
    """The server's clock is set ahead or back, and put right."""

    longest = 9.0

    @classmethod
    def possible(cls, site: Site) -> bool:
        return site.clock_can_be_set

    def begin(self) -> None:
        self.site.set_clock(self.fate.choice((-5, -1, 1, 5, 20)))

    def end(self) -> None:
        self.site.set_clock(0)


class LogInsRefused(Trouble):
    """The brokers' password is changed, and their connections end."""

    def begin(self) -> None:
        with contextlib.suppress(Exception):  # the server may be away as well
            self.site.refuse_log_ins()
            self.site.kill_connections()

    def end(self) -> None:
        self.again(self.site.take_log_ins)


class ReadOnly(Trouble):
    """The server takes no writes, as one that is no longer the primary."""

    def begin(self) -> None:
        with contextlib.suppress(Exception):  # the server may be away as well
            self.site.set_read_only(on=True)

    def end(self) -> None:
        self.again(lambda: self.site.set_read_only(on=False))


class DiskFull(Trouble):
    """Nothing is left on the database's disk; a server may end by that."""

    @classmethod
    def possible(cls, site: Site) -> bool:
        return site.disk.small

    def begin(self) -> None:
        with self.site.starting:
            self.site.disk.fill()

    def end(self) -> None:
        self.site.disk.free()
        self.site.start_server()


class FirstStartKilled(Trouble):
    """Beside all else: a broker is killed while it makes its tables, and must start in the end."""

    @classmethod
    def possible(cls, site: Site) -> bool:
        return True

    def begin(self) -> None:
        self.again(self._make_database)
        for _ in range(3):
            broker = _Starting(self._database)
            time.sleep(self.fate.uniform(0.0, 0.8))
            broker.kill()

    def _make_database(self) -> None:
        folder, server = self.site.disk.folder, self.site.server
        name = f"first-{self.fate.getrandbits(64):x}.db"
        self._database = create_database(server.url) if server else f"sqlite:///{folder / name}"

    def end(self) -> None:
        self.again(self._start)
        if self.site.server is not None:
            self.again(lambda: drop_database(self._database))

    def _start(self) -> None:
        try:
            with BrokerProcess(self._database):
                pass
        except pytest.fail.Exception as failed:
            raise RuntimeError(f"a broker that was killed at its first start does not start:\n{failed}") from None


class _Starting:
    """A broker of which nobody waits until it serves."""

    def __init__(self, database: str) -> None:
        self._process = ForkedCommand(["serve", f"--database={database}", "--listen=127.0.0.1:0"], {}, os.getcwd())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdout, self._process.stderr):
            pipe.close()


TROUBLES: tuple[type[Trouble], ...] = (
    BrokerKilled,
    BrokerFrozen,
    BrokerFrozenWithLocks,
    BrokerVanished,
    CommitLate,
    CommitCut,
    RepliesLost,
    ConnectionsKilled,
    ServerKilled,
    ServerStalls,
    ClockJumps,
    LogInsRefused,
    ReadOnly,
    DiskFull,
    FirstStartKilled,
)
