"""The database servers the tests run on: where they are, and databases of their own for the tests."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import pymysql
import pytest

from support.sessions import processlist

Kind: TypeAlias = Literal["mariadb", "mysql"]
LocalKind: TypeAlias = Literal["sqlite", "mariadb", "mysql", "postgresql"]
AnyKind: TypeAlias = Literal["sqlite", "mariadb", "mysql"]
KINDS: tuple[Kind, ...] = ("mariadb", "mysql")
ALL_KINDS: tuple[AnyKind, ...] = ("sqlite", *KINDS)
LOCAL_KINDS: tuple[LocalKind, ...] = (*ALL_KINDS, "postgresql")
"""Where local transactions run; brokers run on all but the last one."""

_CHECKOUT = Path(__file__).parents[2]
_ABSENT = {"", "0", "false"}


def in_ci() -> bool:
    """Whether a missing part must fail the test instead of skipping it."""
    return os.environ.get("CI", "").lower() not in _ABSENT


def server_url(kind: Kind | Literal["postgresql"]) -> str:
    """The URL of the server: from HALFMQ_TEST_<KIND>_URL, or started by scripts/db where that is wanted.

    Without either the test is skipped; in CI it fails. A server that is started here is left running.
    """
    variable = f"HALFMQ_TEST_{kind.upper()}_URL"
    if url := os.environ.get(variable):
        return url
    if in_ci() or os.environ.get("HALFMQ_TEST_DB") == "start":
        return _started(kind)
    pytest.skip(f"needs {kind}: set {variable}, or HALFMQ_TEST_DB=start to have it started")


@lru_cache
def _started(kind: str) -> str:
    command = [str(_CHECKOUT / "scripts" / "db"), "start", kind]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if result.returncode != 0:
        pytest.fail(f"scripts/db start {kind} failed:\n{result.stderr}", pytrace=False)
    return result.stdout.split()[-1]


def connect(url: str, **options: object) -> pymysql.Connection:
    """A PyMySQL connection to what a database URL names, which is not encrypted."""
    parts = urlsplit(url)
    return pymysql.connect(
        ssl_disabled=True,
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.strip("/") or None,
        **options,
    )


def create_database(server: str) -> str:
    """Makes an empty database with a name of its own; its URL."""
    name = f"halfmq_test_{uuid.uuid4().hex[:12]}"
    with connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def drop_database(url: str) -> None:
    """Drops it, and first ends the connections that a broken test left in it: they would block this for ever."""
    name = urlsplit(url).path.strip("/")
    server = urlsplit(url)._replace(path="/").geturl()
    with connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        ((version,),) = cursor.fetchall()
        cursor.execute(f"SELECT id FROM {processlist(version)} WHERE db = %s", (name,))
        for (session,) in cursor.fetchall():
            with contextlib.suppress(pymysql.err.OperationalError):  # it has just ended by itself
                cursor.execute(f"KILL {session}")
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def delete_files(url: str) -> None:
    """Deletes a database of SQLite that nobody has open."""
    for ending in ("", "-wal", "-shm"):
        Path(f"{url.removeprefix('sqlite:///')}{ending}").unlink(missing_ok=True)


_free: list[str] = []
"""Databases of PostgreSQL that are empty again. To create one takes half a second: hundreds of files are copied."""


def create_postgresql_database() -> str:
    """An empty database of PostgreSQL that no other test has; its URL, for SQLAlchemy with psycopg."""
    server = server_url("postgresql")
    if _free:
        return _free.pop()
    name = f"halfmq_test_{uuid.uuid4().hex[:12]}"
    _on_postgresql(server, f"CREATE DATABASE {name}")
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    atexit.register(_drop_postgresql_database, url)
    return url


def drop_postgresql_database(url: str) -> None:
    """Ends the connections that are left in it, and empties it for another test."""
    own = "datname = current_database() AND pid <> pg_backend_pid()"
    _on_postgresql(url, f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {own}")
    _on_postgresql(
        url,
        "DO $$ DECLARE own name; BEGIN"
        " FOR own IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)' LOOP"
        " EXECUTE format('DROP SCHEMA %I CASCADE', own); END LOOP;"
        " EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());"
        " CREATE SCHEMA public; END $$",
    )
    _free.append(url)


def _drop_postgresql_database(url: str) -> None:
    with contextlib.suppress(Exception):  # The server may be gone.
        name = urlsplit(url).path.strip("/")
        _on_postgresql(server_url("postgresql"), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _on_postgresql(url: str, statement: str) -> None:
    # Imported here: most tests work without its driver.
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute(statement.encode())
