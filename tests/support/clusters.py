"""Clusters of databases that a test may kill, freeze and cut apart: its own, on networks of their own."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import pymysql

from support.databases import connect
from support.private_servers import run_db

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

ClusterKind: TypeAlias = Literal["mysql-cluster", "mariadb-cluster", "mysql-pair", "mariadb-pair"]
CLUSTER_KINDS: tuple[ClusterKind, ...] = ("mysql-cluster", "mariadb-cluster", "mysql-pair", "mariadb-pair")

PATIENCE = 60.0
"""How long a cluster may take to elect a primary, in seconds."""

_SECONDS = 2
"""That a member has for an answer about itself."""

_IS_PRIMARY_OF_GROUP = """
    SELECT COALESCE(SUM(MEMBER_ID = @@server_uuid AND MEMBER_STATE = 'ONLINE' AND MEMBER_ROLE = 'PRIMARY'), 0)
       AND NOT @@super_read_only AND 2 * SUM(MEMBER_STATE = 'UNREACHABLE') < COUNT(*)
      FROM performance_schema.replication_group_members
"""
_IS_SYNCED = """
    SELECT COUNT(*) = 3 FROM information_schema.GLOBAL_STATUS
     WHERE (VARIABLE_NAME, VARIABLE_VALUE) IN
           (('wsrep_cluster_status', 'Primary'), ('wsrep_ready', 'ON'), ('wsrep_local_state_comment', 'Synced'))
"""
_IS_WRITABLE = "SELECT NOT @@read_only"
_QUESTIONS: dict[ClusterKind, str] = {
    "mysql-cluster": _IS_PRIMARY_OF_GROUP,
    "mariadb-cluster": _IS_SYNCED,
    "mysql-pair": _IS_WRITABLE,
    "mariadb-pair": _IS_WRITABLE,
}


class PrivateCluster:
    """A cluster of scripts/db in a folder of its own; a context manager that starts it. Members count from 1."""

    def __init__(self, kind: ClusterKind, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        """Takes where its data goes, and variables for scripts/db."""
        self.kind = kind
        self.url = ""
        self._folder = folder
        # Whoever starts a cluster after this process was killed ends what it left.
        self._environment = {
            **os.environ,
            "HALFMQ_DB_OWNER": str(os.getpid()),
            **(variables or {}),
            "HALFMQ_DB_DIR": str(folder),
        }

    def start(self) -> None:
        """Starts what does not run, and waits until all members are in the cluster."""
        self.url = self._run("start").split()[-1]

    def stop(self) -> None:
        """Shuts all members down."""
        self._run("stop")

    def kill(self, *members: int) -> None:
        """SIGKILL."""
        for member in members:
            self._run("kill", member)

    def restart(self, member: int) -> None:
        """Starts a killed member, and waits until it has joined the others."""
        self._run("start", member)

    def freeze(self, member: int) -> None:
        """SIGSTOP: it keeps its connections, and answers nobody."""
        self._run("freeze", member)

    def thaw(self, member: int) -> None:
        """Lets it go on."""
        self._run("thaw", member)

    def isolate(self, member: int, *, clients: bool = False) -> None:
        """Cuts a member off the others, without an error to either side; with `clients`, off its clients as well."""
        self._run("isolate", member, *(["all"] if clients else []))

    def heal(self, member: int) -> None:
        """Connects it again."""
        self._run("heal", member)

    def promote(self, member: int) -> None:
        """Makes a member of a pair the source, or one of mysql-cluster the primary."""
        self._run("promote", member)

    @property
    def members(self) -> range:
        """Their numbers."""
        return range(1, len(self._hosts) + 1)

    def url_of(self, member: int) -> str:
        """The URL of one member."""
        return urlsplit(self.url)._replace(netloc=f"halfmq:halfmq@{self._hosts[member - 1]}").geturl()

    def pid(self, member: int) -> int:
        """The process of a member."""
        return int((self._folder / self.kind / str(member) / "pid").read_text().split()[0])

    @property
    def writable(self) -> list[int]:
        """Members that take themselves for writable and can commit: they are asked.

        One of a healthy cluster, but all of Galera's. Of a pair there are two when the old source could not be reached
        at the failover.
        """
        return [member for member in self.members if self.is_writable(member)]

    @property
    def primary(self) -> int:
        """The writable member, the first one of Galera's; waited for while there is none."""
        return self.primary_beside()

    def primary_beside(self, *others: int) -> int:
        """The first writable member that is none of these; waited for while there is none."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            for member in self.members:
                if member not in others and self.is_writable(member):
                    return member
            time.sleep(0.1)
        raise TimeoutError(f"no member of {self.kind} beside {others} is writable after {PATIENCE:.0f} s")

    def is_writable(self, member: int) -> bool:
        """Whether a member takes itself for writable, and can commit."""
        try:
            with (
                closing(
                    connect(
                        self.url_of(member), connect_timeout=_SECONDS, read_timeout=_SECONDS, write_timeout=_SECONDS
                    )
                ) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(_QUESTIONS[self.kind])
                return bool(cursor.fetchall() == ((1,),))
        except pymysql.err.OperationalError:
            return False

    @property
    def _hosts(self) -> list[str]:
        return urlsplit(self.url).netloc.partition("@")[2].split(",")

    def _run(self, command: str, *arguments: object) -> str:
        return run_db(command, self.kind, *map(str, arguments), environment=self._environment, started=bool(self.url))

    def __enter__(self) -> Self:
        """Starts it; leaves nothing when that fails."""
        try:
            self.start()
        except BaseException:
            self._run("discard")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it, with its networks, and deletes its data."""
        self._run("discard")
