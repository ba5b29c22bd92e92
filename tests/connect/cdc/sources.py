"""Database servers with a binary log that tests may change, kill and purge; and subscriptions to them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from consumer_sdk import QueueReader
from halfmq_connect.cdc.config import CdcSettings, settings_of
from halfmq_connect.cdc.run import ChangeCapture
from support.databases import Kind, connect
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import pymysql

OPTIONS = {
    "mysql": "--gtid-mode=ON --enforce-gtid-consistency=ON --binlog-row-metadata=FULL --innodb-buffer-pool-size=64M",
    "mariadb": "--log-bin=binlog --binlog-format=ROW --binlog-row-metadata=FULL --log-slave-updates"
    " --sync-binlog=1 --gtid-strict-mode=ON --innodb-buffer-pool-size=64M",
}
PATIENCE = 60.0
_CHECKOUT = Path(__file__).parents[3]


class Source:
    """A server with a binary log."""

    def __init__(self, kind: Kind, folder: Path, number: int = 1, options: str = "") -> None:
        """Takes where its data goes, its number among replicas, and further options."""
        self.kind = kind
        variables = {"HALFMQ_DB_OPTIONS": f"{OPTIONS[kind]} --server-id={number} {options}"}
        self.server = PrivateServer(kind, folder, variables)

    @property
    def host(self) -> str:
        """Where it listens."""
        return self.server.url.rpartition("@")[2].partition("/")[0]

    def connect(self, **options: object) -> pymysql.Connection:
        """A connection that commits each statement, unless the options say otherwise."""
        return connect(self.server.url, **{"autocommit": True, "charset": "utf8mb4", **options})

    def run(self, *statements: str) -> None:
        """Runs statements, each in a transaction of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


def settings(endpoint: str, *hosts: str, **changes: Any) -> CdcSettings:
    """A subscription to all tables of the database `shop`, for the topic `rows`."""
    return settings_of(file_of(endpoint, *hosts, **changes), {"PASSWORD": "halfmq"})


def file_of(endpoint: str, *hosts: str, **changes: Any) -> dict[str, Any]:
    """What the file of such a subscription has."""
    database = {"hosts": list(hosts), "user": "halfmq", "password_env": "PASSWORD", "server_id": 4242}
    database |= changes.pop("database", {})
    told = {"name": "shop", "broker": {"endpoint": endpoint}, "database": database}
    return {**told, "table": [{"match": "shop.*", "topic": "rows"}], **changes}


def as_toml(told: dict[str, Any]) -> str:
    """The file itself."""
    lines = [f"name = {json.dumps(told['name'])}"]
    for section in ("broker", "database", "outbox"):
        if section in told:
            lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in told[section].items())]
    for table in told.get("table", ()):
        lines += ["[[table]]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


class Topic:
    """What was published to a topic, read by offset: each queue in its order."""

    def __init__(self, endpoint: str, name: str = "rows") -> None:
        """Reads nothing yet."""
        self._reader = QueueReader(endpoint)
        self._name = name
        self._next: dict[int, int] = defaultdict(int)
        self.messages: list[Any] = []

    def read(self) -> list[Any]:
        """All messages so far."""
        for queue in self._reader.queue_offsets(self._name):
            while True:
                found = self._reader.read_queue(self._name, queue.queue, self._next[queue.queue], 1000)
                self.messages += found.messages
                self._next[queue.queue] = found.next_offset
                if not found.messages:
                    break
        return self.messages

    def until(self, enough: Callable[[list[Any]], bool]) -> list[Any]:
        """All messages, once they are enough; it fails when no more come for long."""
        until, count = time.monotonic() + PATIENCE, 0
        while not enough(self.read()):
            if len(self.messages) > count:
                until, count = time.monotonic() + PATIENCE, len(self.messages)
            assert time.monotonic() < until, f"only {len(self.messages)} messages came"
            time.sleep(0.02)
        return self.messages

    def rows(self, count: int) -> list[dict[str, Any]]:
        """The bodies of so many messages, not more, in the order of the log and of rows in a transaction."""
        found = [json.loads(message.body) for message in self.until(lambda found: len(found) >= count)]
        assert len(found) == count, [(each["op"], each["after"]) for each in found]
        return sorted(found, key=lambda each: (each["op"] != "r", number_of(each), each["source"]["row"]))

    def close(self) -> None:
        """Ends the connection."""
        self._reader.close()


def number_of(row: dict[str, Any]) -> int:
    """The number of a row's transaction."""
    gtid = row["source"]["gtid"]
    return int(gtid.replace("-", ":").rpartition(":")[2]) if gtid else 0


class Capture:
    """A subscription in a thread of this process."""

    def __init__(self, of: CdcSettings, *, new_snapshot: bool = False, wait: bool = True) -> None:
        """Starts it, and waits until it follows the log, or ended."""
        self.capture = ChangeCapture(of, new_snapshot=new_snapshot)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        if wait:
            assert self.capture.following.wait(PATIENCE), "it does not follow the log"

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:
            self.error = error
            self.capture.following.set()

    def failure(self) -> BaseException:
        """The error that ends it."""
        self._thread.join(PATIENCE)
        assert self.error is not None, "it goes on"
        return self.error

    def stop(self) -> None:
        """Ends it."""
        self.capture.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        """Runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it, and raises what ended it before."""
        self.stop()
        if self.error is not None and error is None:
            raise self.error


class CaptureProcess:
    """`halfmq cdc` as users start it."""

    def __init__(self, told: dict[str, Any], folder: Path, *options: str) -> None:
        """Starts it."""
        self._file = folder / f"{told['name']}.toml"
        self._file.write_text(as_toml(told))
        self._options = options
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "halfmq_cli", "cdc", str(self._file), *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_CHECKOUT,
            env={"PASSWORD": "halfmq", "PATH": "/usr/bin:/bin"},
        )
        self.lines: list[str] = []
        self._out = ""
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            with self._said:
                self.lines.append(line)
                self._said.notify_all()

    def await_log(self, word: str) -> None:
        """Waits for a line with this word."""
        with self._said:
            found = self._said.wait_for(lambda: any(word in line for line in self.lines), PATIENCE)
        assert found, "".join(self.lines)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.end()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: its status, and what it said."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        if self.process.stdout is not None and not self.process.stdout.closed:
            self._out = self.process.stdout.read()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return status, self._out, "".join(self.lines)

    def stop(self) -> tuple[int, str, str]:
        """SIGTERM, and waits."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.end()
