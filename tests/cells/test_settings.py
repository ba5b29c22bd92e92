"""Which databases may be cells, and what a broker says of those that may not."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from broker.domain.cell import parse_cells
from broker.errors import ConfigurationError
from cells.client import CellClient
from support.brokers import BrokerProcess
from support.command import run as run_command
from support.databases import connect, create_database, drop_database, server_url
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind


@pytest.fixture
def databases(kind: Kind) -> Iterator[list[str]]:
    made = [create_database(server_url(kind)) for _ in range(3)]
    yield made
    for url in made:
        drop_database(url)


def test_a_database_is_one_cell_of_one_installation(databases: list[str]) -> None:
    home, other, third = databases
    with BrokerProcess(home, {"HALFMQ_CELLS": f"b={other}"}) as broker, CellClient(broker.endpoint) as client:
        client.topic_in("b")
    run_serve(HALFMQ_DATABASE=home).names("cells", "home of the cells b")
    run_serve(HALFMQ_DATABASE=home, HALFMQ_CELLS=f"c={third}").names("cells", "has the cells b")
    twice = run_serve(HALFMQ_DATABASE=home, HALFMQ_CELLS=f"b={other} c={other.replace('127.0.0.1', 'localhost')}")
    assert twice.status == 2
    assert "halfmq: cells: The database that `cells` names as 'c' is the cell 'b'" in twice.errors
    run_serve(HALFMQ_DATABASE=home, HALFMQ_CELLS=f"b={other} c=mysql://u@h").names(
        "cells", "c: The database URL names no"
    )
    run_serve(HALFMQ_DATABASE=other).names("database", "is the cell 'b'")
    run_serve(HALFMQ_DATABASE=third, HALFMQ_CELLS=f"b={other}").names("cells", "of another installation")
    with BrokerProcess(home, {"HALFMQ_CELLS": f"b={other} c={third}"}) as broker, CellClient(broker.endpoint) as client:
        client.topic_in("c")


def test_a_new_cell_is_empty(databases: list[str]) -> None:
    home, other, _ = databases
    with BrokerProcess(other) as broker, CellClient(broker.endpoint) as client:
        client.topic_in("")
    run_serve(HALFMQ_DATABASE=home, HALFMQ_CELLS=f"b={other}").names("cells", "has topics already")
    run_serve(HALFMQ_DATABASE=home, HALFMQ_CELLS="b=mysql://u@127.0.0.1:1/d").names("cells", "cannot be opened")
    # It has no cells by that.
    with BrokerProcess(home) as broker, CellClient(broker.endpoint) as client:
        client.topic_in("")


def test_a_cell_is_served_when_its_user_may_do_what_is_needed(kind: Kind, databases: list[str]) -> None:
    home, other, _ = databases
    for url in (home, other):
        assert run_command("migrate", f"--database={url}").returncode == 0
    user, name = f"u{uuid.uuid4().hex[:12]}", urlsplit(other).path.strip("/")
    url = urlsplit(other)
    own = url._replace(netloc=f"{user}:secret@{url.netloc.rpartition('@')[2]}").geturl()
    with connect(server_url(kind), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {user} IDENTIFIED BY 'secret'")
        try:
            cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}")
            with (
                BrokerProcess(home, {"HALFMQ_CELLS": f"b={own}"}, migrate=False) as broker,
                CellClient(broker.endpoint) as client,
            ):
                broker.await_log("the cell b is not served", "ALTER command denied")
                client.topic_in("")
                cursor.execute(f"GRANT ALL ON {name}.* TO {user}")
                broker.await_log("serves the cell b")
                client.topic_in("b")
        finally:
            cursor.execute(f"DROP USER {user}")


def test_a_new_cell_gives_greater_numbers_than_those_that_there_are(databases: list[str]) -> None:
    home, other, _ = databases
    with BrokerProcess(home) as broker, CellClient(broker.endpoint) as client:
        for _ in range(70):
            client.topic_in("")
    with BrokerProcess(home, {"HALFMQ_CELLS": f"b={other}"}) as broker, CellClient(broker.endpoint) as client:
        client.topic_in("b")
        client.topic_in("")
    found = []
    for url in (home, other):
        with closing(connect(url)) as own, own.cursor() as cursor:
            cursor.execute("SELECT MAX(topic_id) FROM topic")
            found.append(cursor.fetchall()[0][0])
    assert found[0] % 64 == 1
    assert found[1] > 70
    assert found[1] % 64 == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b", "name=URL"),
        ("b=", "name=URL"),
        ("home=mysql://h/d", "name=URL"),
        ("B=mysql://h/d", "name=URL"),
        ("b=mysql://h/d b=mysql://h/e", "twice"),
        ("b=sqlite:///x.db", "MySQL or MariaDB"),
        (" ".join(f"c{number}=mysql://h/d{number}" for number in range(64)), "63 are allowed"),
    ],
)
def test_what_the_setting_does_not_take(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        parse_cells(text)
    assert refused.value.field == "cells"
    assert "mysql://" not in refused.value.message


def test_the_setting_has_cells_with_spaces_between_them() -> None:
    assert parse_cells(" b=mysql://u:p=w@h1,h2/d?a=b \n c=mariadb+pymysql://h/e ") == {
        "b": "mysql://u:p=w@h1,h2/d?a=b",
        "c": "mariadb+pymysql://h/e",
    }
    assert parse_cells("") == {}


def test_a_broker_without_cells_knows_only_home(databases: list[str]) -> None:
    with BrokerProcess(databases[0]) as broker, CellClient(broker.endpoint) as client:
        for cell in ("", "home", "*"):
            client.topic_in(cell)
            client.group_in(cell)
        for create in (client.topic_in, client.group_in):
            with pytest.raises(Exception, match="There is no cell 'b'"):
                create("b")


def test_cells_need_a_server(tmp_path: object) -> None:
    run_serve(HALFMQ_DATABASE=f"sqlite:///{tmp_path}/own.db", HALFMQ_CELLS="b=mysql://h/d").names("cells", "MariaDB")
