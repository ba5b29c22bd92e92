"""Opening a database: what is wrong is said by name, with the remedy, before anything is served."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from broker.errors import ConfigurationError
from broker.storage.durability import open_database
from support.databases import connect, server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.databases import Kind

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


def refusal(url: str, **rest: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        open_database(url, **{"answer_timeout": 5.0, **rest})  # type: ignore[arg-type]
    assert refused.value.field == "database"
    return refused.value.message


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "cannot be read"),
        ("nonsense", "cannot be read"),
        ("mysql//host", "cannot be read"),
        ("postgresql://host/db", "'postgresql' is not supported"),
        ("oracle://host/db", "'oracle' is not supported"),
        ("mysql://host", "names no database"),
        ("mysql://user:secret@host:3306/", "names no database"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "would lose messages"),
        ("sqlite:////no/such/folder/at/all/x.db", "does not exist; create it"),
        ("mysql://127.0.0.1:1/db?nonsense=1", "nonsense"),
        ("mysql://127.0.0.1:port/db", "cannot be read"),
    ],
)
def test_wrong_urls(url: str, words: str) -> None:
    message = refusal(url)
    assert words in message
    assert "secret" not in message


@SERVERS
def test_a_wrong_password(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    url = fresh_database(kind)
    for wrong in (url.replace("//root@", "//nobody-such:secret@"), url.replace("//halfmq:halfmq@", "//halfmq:secret@")):
        if wrong != url:
            message = refusal(wrong)
            assert "check name, password and grants" in message
            assert "secret" not in message


@SERVERS
def test_a_missing_database(kind: Kind) -> None:
    message = refusal(server_url(kind).rsplit("/", 1)[0] + "/no_such_database")
    assert "'no_such_database' does not exist" in message
    assert "CREATE DATABASE" in message


def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    message = refusal(f"mysql://user:secret@127.0.0.1:{port}/db")
    assert f"127.0.0.1:{port} cannot be reached" in message
    assert "secret" not in message


@SERVERS
def test_a_good_server_opens_without_warnings_of_loss(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database, warnings = open_database(fresh_database(kind), answer_timeout=5.0)
    assert database.dialect.name == kind
    assert not [warning for warning in warnings if "innodb_flush_log_at_trx_commit" in warning]
    assert "halfmq:halfmq" not in database.shown_url
    database.close()


def test_a_file_opens(tmp_path: Path) -> None:
    database, warnings = open_database(f"sqlite:///{tmp_path / 'new.db'}", answer_timeout=5.0)
    session = database.session()
    assert session.fetch("PRAGMA synchronous")[0][0] == 2
    assert session.fetch("PRAGMA journal_mode")[0][0] == "wal"
    database.release(session)
    database.close()
    assert warnings == []


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear broker, " * 1000)
    assert "cannot be opened" in refusal(f"sqlite:///{path}")


@SERVERS
def test_sessions_have_what_the_statements_rely_on(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database, _ = open_database(fresh_database(kind), answer_timeout=5.0)
    session = database.session()
    isolation = "@@transaction_isolation" if kind == "mysql" else "@@tx_isolation"
    level, mode, zone, charset = session.fetch(
        f"SELECT {isolation}, @@sql_mode, @@time_zone, @@character_set_connection"
    )[0]
    session.rollback()
    database.release(session)
    database.close()
    assert (level, zone, charset) == ("READ-COMMITTED", "+00:00", "utf8mb4")
    assert "STRICT_ALL_TABLES" in mode
    assert "NO_BACKSLASH_ESCAPES" not in mode


class _Settings:
    """Changes a server's setting, and changes it back. One test process at a time, for a setting is everybody's."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, statement: str) -> None:
        with connect(self.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement)


@pytest.mark.xdist_group("server-settings")
@SERVERS
@pytest.mark.parametrize("value", [0, 2])
def test_a_server_that_would_lose_commits_is_refused(
    kind: Kind, fresh_database: Callable[[Kind], str], value: int
) -> None:
    url = fresh_database(kind)
    settings = _Settings(url)
    settings.run(f"SET GLOBAL innodb_flush_log_at_trx_commit = {value}")
    try:
        message = refusal(url)
        assert f"innodb_flush_log_at_trx_commit is {value}" in message
        assert "SET GLOBAL innodb_flush_log_at_trx_commit = 1" in message
        database, warnings = open_database(url, answer_timeout=5.0, allow_unsafe=True)
        database.close()
        assert any(f"innodb_flush_log_at_trx_commit is {value}" in warning for warning in warnings)
    finally:
        settings.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.xdist_group("server-settings")
def test_an_unsafe_binary_log_is_warned_of(fresh_database: Callable[[Kind], str]) -> None:
    """MySQL keeps a binary log by default."""
    url = fresh_database("mysql")
    settings = _Settings(url)
    settings.run("SET GLOBAL sync_binlog = 0")
    try:
        database, warnings = open_database(url, answer_timeout=5.0)
        database.close()
        assert any("sync_binlog is 0" in warning for warning in warnings)
    finally:
        settings.run("SET GLOBAL sync_binlog = 1")


class FakeServer:
    """Speaks just enough of the protocol to greet with a version and to answer statements."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Wakes the thread that waits in accept().
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(30)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client:
                self._greet(client)

    def _greet(self, client: socket.socket) -> None:
        capabilities = 0x0008_A20D | 0x0000_0200
        greeting = b"\x0a" + self.version.encode() + b"\x00" + struct.pack("<I", 1) + b"abcdefgh\x00"
        greeting += struct.pack("<HBHHB", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21)
        greeting += b"\x00" * 10 + b"ijklmnopqrst\x00" + b"mysql_native_password\x00"
        self._send(client, 0, greeting)
        fine = b"\x00\x00\x00\x02\x00\x00\x00"
        if self._receive(client) is None:
            return
        self._send(client, 2, fine)
        while (statement := self._receive(client)) is not None:
            if b"VERSION()" not in statement:
                self._send(client, 1, fine)
                continue
            text = self.version.encode()
            column = b"\x03def\x00\x00\x00\x01v\x00\x0c" + struct.pack("<HIBHB", 45, 255, 253, 0, 0) + b"\x00\x00"
            end = b"\xfe\x00\x00\x02\x00"
            for number, packet in enumerate((b"\x01", column, end, bytes([len(text)]) + text, end), 1):
                self._send(client, number, packet)

    @staticmethod
    def _send(client: socket.socket, number: int, packet: bytes) -> None:
        client.sendall(struct.pack("<I", len(packet))[:3] + bytes([number]) + packet)

    @staticmethod
    def _receive(client: socket.socket) -> bytes | None:
        try:
            head = client.recv(4, socket.MSG_WAITALL)
            return client.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL) if len(head) == 4 else None
        except OSError:
            return None


@pytest.fixture
def greeting() -> Iterator[Callable[[str], str]]:
    """Starts servers that greet with a version; their URLs."""
    servers: list[FakeServer] = []

    def start(version: str) -> str:
        servers.append(FakeServer(version))
        return f"mysql://user:secret@127.0.0.1:{servers[-1].port}/db"

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("5.7.44-log", "mysql 5.7.44-log; halfmq needs 8.4"),
        ("8.0.36", "mysql 8.0.36; halfmq needs 8.4"),
        ("8.3.0", "needs 8.4"),
        ("5.5.5-10.5.23-MariaDB-1:10.5.23", "needs 10.6"),
        ("10.5.23-MariaDB", "mariadb 10.5.23-MariaDB; halfmq needs 10.6"),
        ("unheard of", "cannot be opened"),
    ],
)
def test_a_server_too_old(greeting: Callable[[str], str], version: str, words: str) -> None:
    assert words in refusal(greeting(version))


def test_a_server_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hanging_up = threading.Thread(target=listening.accept()[0].close, daemon=True)
        hanging_up.start()
        assert "cannot be reached" in refusal(f"mysql://u@127.0.0.1:{listening.getsockname()[1]}/db")
        hanging_up.join(30)
