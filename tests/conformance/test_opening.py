"""Opening a database: what is wrong is said by name, with the remedy, before anything is served."""

from __future__ import annotations

import re
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import ConfigurationError
from broker.storage.engine.cluster import role
from broker.storage.engine.connection import Database
from broker.storage.engine.dialects import failure_of, server_settings
from broker.storage.engine.durability import open_database
from broker.storage.engine.failures import Failure
from conformance.fake_server import GOOD_SETTINGS, FakeServer
from support.databases import server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
        ("mysql://user:p@secret@host:3306/db", "%40"),
        ("mysql://user:p@se/secret@host:3306/db", "%40"),
        ("mysql://user:p@ss:secret@host:3306/db", "cannot be read"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "in memory loses"),
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


@pytest.fixture
def serving() -> Iterator[Callable[..., str]]:
    """Starts servers with a version and settings; their URLs."""
    servers: list[FakeServer] = []

    def start(version: str, settings: Sequence[object] = GOOD_SETTINGS, **rest: bool) -> str:
        servers.append(FakeServer(version, settings, **rest))
        return servers[-1].url

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
def test_a_server_too_old(serving: Callable[..., str], version: str, words: str) -> None:
    assert words in refusal(serving(version))


@pytest.mark.parametrize(
    "version", ["8.4.0", "8.4.7-log", "9.0.1", "10.6.0-MariaDB", "5.5.5-11.4.2-MariaDB", "12.1.0-MariaDB"]
)
def test_a_server_new_enough(serving: Callable[..., str], version: str) -> None:
    database, warnings = open_database(serving(version), answer_timeout=5.0)
    database.close()
    assert warnings == []


# A setting is everybody's, so it is not changed on the real servers: brokers that start meanwhile would be refused.
@pytest.mark.parametrize(
    ("place", "value", "words", "refused"),
    [
        (0, 0, "innodb_flush_log_at_trx_commit is 0", True),
        (0, 2, "innodb_flush_log_at_trx_commit is 2", True),
        (3, (16 << 20) - 1, "max_allowed_packet is 16777215", True),
        (3, 16 << 20, "", False),
        (2, 0, "sync_binlog is 0", False),
        (2, 100, "sync_binlog is 100", False),
        (4, 0, "innodb_doublewrite is off", False),
        (4, "OFF", "innodb_doublewrite is off", False),
        (4, "ON", "", False),
    ],
)
def test_a_server_that_would_lose_commits(
    serving: Callable[..., str], place: int, value: object, words: str, refused: bool
) -> None:
    settings = [*GOOD_SETTINGS[:place], value, *GOOD_SETTINGS[place + 1 :]]
    if refused:
        message = refusal(serving("8.4.0", settings))
        assert words in message
        assert "set it to" in message
    database, warnings = open_database(serving("8.4.0", settings), answer_timeout=5.0, allow_unsafe=refused)
    database.close()
    assert [words in warning for warning in warnings] == ([True] if words else [])


@pytest.mark.parametrize(("packet", "refused"), [(31 << 20, False), ((31 << 20) - 1, True)])
def test_a_packet_too_small_for_the_largest_body(serving: Callable[..., str], packet: int, refused: bool) -> None:
    url = serving("10.11.0-MariaDB", [1, 0, 0, packet, 1])
    try:
        opened, _ = open_database(url, answer_timeout=5.0, largest_body=15 << 20)
    except ConfigurationError as error:
        assert refused
        assert "messages of 15728640 bytes (max_body_bytes) would not fit; set it to 32505856" in str(error)
    else:
        opened.close()
        assert not refused


def test_the_binary_logs_durability_does_not_matter_without_one(serving: Callable[..., str]) -> None:
    database, warnings = open_database(serving("10.11.0-MariaDB", [1, 0, 0, 64 << 20, 1]), answer_timeout=5.0)
    database.close()
    assert warnings == []


@SERVERS
def test_the_real_servers_settings_are_those_asked_for(
    kind: Kind, fresh_database: Callable[[Kind], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[object]] = {}

    def rows(connection: Any, sql: str) -> Sequence[tuple[object, ...]]:
        found = role.rows(connection, sql)
        asked[sql] = [str(value) for value in found[0]]
        return found

    monkeypatch.setattr(server_settings, "rows", rows)
    database, _ = open_database(fresh_database(kind), answer_timeout=5.0)
    session = database.session()
    shown = dict(session.fetch("SHOW GLOBAL VARIABLES"))
    session.rollback()
    database.release(session)
    database.close()
    ((sql, found),) = asked.items()
    names = re.findall(r"@@GLOBAL\.(\w+)", sql)
    assert "innodb_flush_log_at_trx_commit" in names
    switches = {"ON": "1", "OFF": "0"}
    assert [switches.get(value, value) for value in found] == [switches.get(shown[n], shown[n]) for n in names]


def test_a_server_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            listening.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up, daemon=True)
        hanging_up.start()
        assert "cannot be reached" in refusal(f"mysql://u@127.0.0.1:{listening.getsockname()[1]}/db")
        hanging_up.join(30)


def test_a_log_in_that_the_server_gave_up_is_no_internal_error(serving: Callable[..., str]) -> None:
    """While this process stood still: what the server said then answers nothing that was asked."""
    with pytest.raises(Exception, match="sequence") as given_up:
        Database(serving("8.4.0", gives_up=True))
    assert failure_of(given_up.value) is Failure.LOST
