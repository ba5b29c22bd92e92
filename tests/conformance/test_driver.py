"""Rows are taken apart as the driver itself does it: the same values, the same types, the same errors."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pymysql
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from broker.storage.engine.connection import Database
from broker.storage.engine.dialects import quick_connection
from broker.storage.engine.dialects.quick_connection import QuickConnection, Rows, readers_of, take_apart
from support.databases import server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind


def options_of(kind: Kind) -> dict[str, Any]:
    url = make_url(server_url(kind))
    options = {"host": url.host, "port": url.port, "user": url.username, "password": str(url.password or "")}
    return options | {"database": url.database}


@pytest.fixture(params=["mariadb", "mysql"])
def connections(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """The driver's own connection and the quick one, on each server."""
    options = options_of(request.param)
    made = [each(**options, charset="utf8mb4", ssl_disabled=True) for each in (pymysql.Connection, QuickConnection)]
    yield made[0], made[1]
    for each in made:
        each.close()


def both(connections: tuple[Any, Any], sql: str) -> tuple[Any, Any]:
    answers = []
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            answers.append((cursor.fetchall(), cursor.rowcount, cursor.lastrowid, cursor.description))
    return answers[0], answers[1]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1, -1, 9223372036854775807, NULL, '', 'ä €', x'00ff', 1.5, CAST(1.25 AS DECIMAL(10, 2))",
        "SELECT CAST('2026-01-02 03:04:05.678901' AS DATETIME(6)), CAST('10:11:12' AS TIME)",
        "SELECT NULL, NULL, NULL",
        "SELECT 1 FROM (SELECT 1) x WHERE 1 = 0",
        "SELECT CAST('text' AS BINARY), CAST('text' AS CHAR), CAST(REPEAT('b', 300) AS BINARY)",
        "SELECT n, REPEAT('x', n) FROM (SELECT 250 n UNION SELECT 251 UNION SELECT 252 UNION SELECT 65535"
        " UNION SELECT 65536) t",
        "SELECT REPEAT('x', 8000000), REPEAT('y', 8800000), 7",
        "DO 1",
    ],
)
def test_values_and_types_are_the_drivers(connections: tuple[Any, Any], sql: str) -> None:
    plain, quick = both(connections, sql)
    assert plain == quick
    assert [type(value) for row in plain[0] for value in row] == [type(value) for row in quick[0] for value in row]


@pytest.mark.parametrize("kind", ["mysql"])
def test_where_the_server_encrypts_no_certificates_are_read_that_none_are_checked_by(kind: Kind) -> None:
    with QuickConnection(**options_of(kind)) as quick, quick.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cursor.fetchall()[0][1]
        assert quick.ctx.cert_store_stats()["x509_ca"] == 0
    authorities = ssl.get_default_verify_paths().openssl_cafile
    with pytest.raises(pymysql.err.OperationalError, match="certificate verify failed"):
        QuickConnection(**options_of(kind), ssl_ca=authorities, ssl_verify_cert=True)


def test_columns_that_were_described_before(connections: tuple[Any, Any]) -> None:
    """Other columns of the same number, the same again, and more kinds than are kept."""
    queries = ["SELECT 1 AS a, 'x' AS b", "SELECT 'x' AS a, 1 AS b", "SELECT x'00' AS a, NULL AS b"]
    for sql in [
        *queries,
        *queries,
        *(f"SELECT 1 AS c{number}" for number in range(quick_connection._MOST_KNOWN + 5)),
        *queries,
    ]:
        plain, quick = both(connections, sql)
        assert plain == quick
    assert 0 < len(connections[1].known_columns) <= quick_connection._MOST_KNOWN


@pytest.mark.parametrize("rows", [1, 250, 251, 70_000])
def test_numbers_of_rows_and_of_new_ids(connections: tuple[Any, Any], rows: int) -> None:
    found = []
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE own_driver (n BIGINT AUTO_INCREMENT PRIMARY KEY, a INT)")
            cursor.execute(f"ALTER TABLE own_driver AUTO_INCREMENT = {1 << 33}")
            cursor.execute(f"INSERT INTO own_driver (a) VALUES {','.join(['(1)'] * rows)}")
            found.append((cursor.rowcount, cursor.lastrowid, connection.server_status))
            cursor.execute("UPDATE own_driver SET a = 2")
            found[-1] += (cursor.rowcount,)
            cursor.execute("SELECT 10 / 0")
            found[-1] += (cursor.warning_count,)
    assert found[0] == found[1]
    assert found[0][:2] == (rows, 1 << 33)


def test_an_error_between_rows_is_raised_and_the_connection_goes_on(connections: tuple[Any, Any]) -> None:
    """The server meets it after it has sent some rows."""
    sql = "SELECT CAST(n AS CHAR), (SELECT m FROM (SELECT 1 m UNION ALL SELECT 2) t WHERE n > 2) FROM"
    sql += " (SELECT 1 n UNION ALL SELECT 2 UNION ALL SELECT 3) s"
    for connection in connections:
        with connection.cursor() as cursor:
            with pytest.raises(pymysql.err.OperationalError, match="more than 1 row"):
                cursor.execute(sql)
            cursor.execute("SELECT 7")
            assert cursor.fetchall() == ((7,),)


@pytest.mark.parametrize("size", [0, 20, 60, 61, 200, 250, 251, 1000, 65_535, 65_600, 300_000])
def test_rows_that_end_anywhere_in_what_is_read_at_once(connections: tuple[Any, Any], size: int) -> None:
    """Rows are taken from a buffer: some of them end in the next one."""
    rows = min(3000, 2_000_000 // (size + 20))
    sql = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    sql += f" SELECT i, REPEAT('x', {size} + i % 7), IF(i % 5, NULL, 'ä'), -i FROM n"
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET SESSION cte_max_recursion_depth = 5000"
                if "-" not in connection.server_version or "MariaDB" not in connection.server_version
                else "SET SESSION max_recursive_iterations = 5000"
            )
    plain, quick = both(connections, sql)
    assert len(plain[0]) == rows
    assert plain == quick


def test_a_connection_that_is_cut_is_lost(connections: tuple[Any, Any]) -> None:
    plain, quick = connections
    with quick.cursor() as cursor, plain.cursor() as killer:
        killer.execute(f"KILL {quick.thread_id()}")
        with pytest.raises((pymysql.err.OperationalError, pymysql.err.InterfaceError)) as lost:
            cursor.execute("SELECT 1")
        assert lost.value.args[0] in {2006, 2013, 1927, 4031}


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_session_whose_connection_was_cut_is_given_back_without_an_error(kind: Kind) -> None:
    """A broker whose database went away for a moment ends as any other does."""
    database = Database(server_url(kind))
    lost, other = database.session(reading=True), database.session(reading=True)
    (own_id,) = lost.fetch_one("SELECT CONNECTION_ID()") or (0,)
    other.run(f"KILL {own_id}")
    database.release(lost)
    database.release(other)
    again = database.session(reading=True)
    assert again.fetch_one("SELECT 1") == (1,)
    database.release(again)
    database.close()


def encoded(row: tuple[Any, ...]) -> bytes:
    """A row of the text protocol."""
    data = b""
    for value in row:
        content = value if isinstance(value, bytes) else str(value).encode()
        if value is None:
            data += b"\xfb"
        elif len(content) < 251:
            data += bytes([len(content)]) + content
        else:
            data += b"\xfc" + len(content).to_bytes(2, "little") + content
    return data


KINDS = {
    int: (("ascii", int), st.integers(-(2**63), 2**63 - 1)),
    bytes: ((None, None), st.binary(max_size=300)),
    str: (("utf-8", None), st.text(max_size=99)),
}


@st.composite
def results(draw: st.DrawFn) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Columns, and rows many of which are alike: their values are picked from a few, of a few lengths."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS.values())), max_size=6))
    few = [st.sampled_from(draw(st.lists(st.none() | values, min_size=1, max_size=3))) for _, values in kinds]
    return [column for column, _ in kinds], draw(st.lists(st.tuples(*few), max_size=30))


@settings(deadline=None)
@given(results())
@example(([(None, None), (None, None)], [(b"x" * 200, b""), (b"", b"")]))
def test_any_rows(result: tuple[list[Any], list[tuple[Any, ...]]]) -> None:
    """Rows are taken apart alone, and one after the other with what was learned from those before."""
    columns, rows = result
    together = Rows(readers_of(columns))
    data = b"before" + b"".join(map(encoded, rows)) + b"behind"
    at = len(b"before")
    for row in rows:
        assert take_apart(encoded(row), readers_of(columns)) == row
        together.take(data, at, at + len(encoded(row)))
        at += len(encoded(row))
    assert together.taken == rows
