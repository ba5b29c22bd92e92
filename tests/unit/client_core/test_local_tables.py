"""Tables of the user's database: their statements on each dialect."""

from __future__ import annotations

import sqlite3

from client_core.local_database import Column, Index, Kind, Table

TABLE = Table(
    "shop.halfmq_things",
    (
        Column("number", Kind.SERIAL),
        Column("name", Kind.NAME),
        Column("body", Kind.BODY),
        Column("note", Kind.TEXT, nullable=True),
        Column("until", Kind.NUMBER, nullable=True),
    ),
    indexes=(Index("due", ("name", "until")),),
)


def test_mysql_has_its_indexes_in_the_one_statement() -> None:
    (statement,) = TABLE.statements("mariadb", TABLE.name)
    assert "number BIGINT AUTO_INCREMENT NOT NULL" in statement
    assert "body MEDIUMBLOB NOT NULL" in statement
    assert "until BIGINT,\n" in statement
    assert "PRIMARY KEY (number)" in statement
    assert "KEY halfmq_things_due (name, until)" in statement


def test_postgresql_has_its_indexes_beside() -> None:
    statements = TABLE.statements("postgresql", TABLE.name)
    assert len(statements) == 2
    assert statements[1] == "CREATE INDEX IF NOT EXISTS halfmq_things_due ON shop.halfmq_things (name, until)"
    assert TABLE.sql("postgresql") == ";\n".join(statements)


def test_sqlite_numbers_rows_by_itself_and_never_again_the_same() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("ATTACH ':memory:' AS shop")
    for _ in range(2):
        for statement in TABLE.statements("sqlite", TABLE.name):
            connection.execute(statement)
    insert = "INSERT INTO shop.halfmq_things (name, body) VALUES ('a', x'00')"
    connection.execute(insert)
    connection.execute("DELETE FROM shop.halfmq_things")
    connection.execute(insert)
    assert connection.execute("SELECT number, note FROM shop.halfmq_things").fetchall() == [(2, None)]


def test_a_key_may_have_several_columns() -> None:
    table = Table("t", (Column("a", Kind.NAME), Column("b", Kind.NAME)), key=("a", "b"))
    assert all("PRIMARY KEY (a, b)" in table.sql(dialect) for dialect in ("mysql", "postgresql", "sqlite"))
