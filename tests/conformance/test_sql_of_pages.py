"""SQL for monitoring that pages show, run as it stands on servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from support.command import run
from support.databases import Kind, connect, create_database, drop_database, server_url
from support.listings import listing_with

if TYPE_CHECKING:
    from collections.abc import Iterator

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
