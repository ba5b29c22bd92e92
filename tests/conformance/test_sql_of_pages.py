"""SQL for monitoring that pages show, run as it stands on servers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from support.command import run
from support.databases import Kind, connect, create_database, drop_database, server_url
from support.listings import listing_with

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymysql.cursors import Cursor

pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@pytest.fixture
def url(kind: Kind) -> Iterator[str]:
    """A database with all tables; the user of its name is dropped at the end."""
    made = create_database(server_url(kind))
    try:
        database = Database(made)
        migrate(database)
        database.close()
        yield made
    finally:
        with connect(made, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP USER IF EXISTS '{user_of(made)}'@'%'")
        drop_database(made)


def user_of(url: str) -> str:
    return f"mon_{url.rpartition('/')[2]}"[:32]


def statements(page: str, first: str, url: str) -> list[str]:
    """Those of a page, for this database, and a user of the test's own."""
    text = listing_with(page, first).text.replace("'monitor'", f"'{user_of(url)}'").replace("'...'", "'secret'")
    text = text.replace("halfmq.", f"`{url.rpartition('/')[2]}`.")
    return [each for each in text.strip().split(";\n") if each]


def test_the_user_of_the_page_of_doctor_is_enough(kind: Kind, url: str) -> None:
    rights = statements("docs/doctor.md", "CREATE USER", url)
    assert "performance_schema" in rights[-1]
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in rights[:-1] if kind == "mariadb" else rights:
            cursor.execute(statement)
    scheme, _, rest = url.partition("://")
    theirs = f"{scheme}://{user_of(url)}:secret@{rest.rpartition('@')[2]}"
    done = run("doctor", "--json", "--skip", "rights", "--skip", "plans", variables={"HALFMQ_DATABASE": theirs})
    told = json.loads(done.stdout)
    assert told["error"] is None
    found = [each["found"] for each in told["findings"]]
    assert [text for text in found if "cannot be looked at" in text or "lacks" in text] == []


def test_the_statements_on_views_of_the_page_of_metrics(url: str) -> None:
    pending, lag, right = statements("docs/metrics.md", "SELECT producer_group", url)
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{user_of(url)}'@'%' IDENTIFIED BY 'secret'")
        for statement in (pending, lag, right):
            cursor.execute(statement)
    scheme, _, rest = url.partition("://")
    theirs = f"{scheme}://{user_of(url)}:secret@{rest.rpartition('@')[2]}"
    with connect(theirs) as connection, connection.cursor() as cursor:
        cursor.execute(lag)
        assert cursor.fetchall() == ()


BODY = 1000
PURGED_WITHIN = 60.0
FILLED = 8_000
LEFT = 20


def test_the_statements_of_the_page_of_disk_space(url: str) -> None:
    """They tell what is free behind deleted messages, and give it back."""
    sizes, _ = statements("docs/disk-space.md", "SELECT table_name, table_rows", url)
    rebuild = statements("docs/disk-space.md", "SET SESSION lock_wait_timeout", url)
    sizes = sizes.replace("'halfmq'", f"'{url.rpartition('/')[2]}'")
    columns = "queue_id, log_offset, transaction_id, position, body, size, born_at, stored_at"
    values = [(1, offset, offset.to_bytes(16, "big"), 0, bytes(BODY), BODY, 0, 0) for offset in range(FILLED)]
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        if "maria" not in str(cursor.fetchall()[0][0]).lower():
            cursor.execute("SET SESSION information_schema_stats_expiry = 0")
        cursor.executemany(f"INSERT INTO message ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", values)
        cursor.execute("DELETE FROM message WHERE log_offset >= %s", (LEFT,))
        until = time.monotonic() + PURGED_WITHIN
        while (free := _free(cursor, sizes)) < FILLED * BODY / 2**20 / 2:
            assert time.monotonic() < until, f"{free} MiB are free"
            time.sleep(0.2)
        for statement in rebuild:
            cursor.execute(statement)
        assert _free(cursor, sizes) < free / 2
        cursor.execute("SELECT COUNT(*) FROM message")
        assert cursor.fetchall() == ((LEFT,),)


def test_the_statement_of_the_page_of_disk_space_tells_of_the_history(kind: Kind, url: str) -> None:
    _, history = statements("docs/disk-space.md", "SELECT table_name, table_rows", url)
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(history)
        ((name, count),) = cursor.fetchall()
    assert (name, count >= 0) == ("trx_rseg_history_len", True), kind


def _free(cursor: Cursor, sizes: str) -> int:
    """MiB of the table `message` that are free."""
    cursor.execute(sizes)
    return int({name: free for name, _, _, free in cursor.fetchall()}["message"])
