"""The proxy breaks a COMMIT exactly where it says, against real servers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pymysql
import pytest
from pymysql.constants import CLIENT

from faults.mysql_proxy import Delay, Kept, Late, MySqlProxy, SqlError, Then, When
from support.databases import KINDS, Kind, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOST = 2013  # the client's "Lost connection to MySQL server during query"


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, fresh_database: Callable[[Kind], str]) -> str:
    url = fresh_database(request.param)
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE half (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE op_record (id INT PRIMARY KEY)")
    return url


@pytest.fixture
def proxy(database: str) -> Iterator[MySqlProxy]:
    with MySqlProxy.to(database) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: MySqlProxy, database: str) -> Iterator[pymysql.Connection]:
    with connect(proxy.url(database), read_timeout=10) as connection:
        yield connection


def insert(connection: pymysql.Connection, table: str, number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (%s)", (number,))


def rows(database: str, table: str) -> list[int]:
    with connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} ORDER BY id")
        return [number for (number,) in cursor.fetchall()]


def assert_commit_is_lost(connection: pymysql.Connection) -> None:
    with pytest.raises(pymysql.err.OperationalError) as caught:
        connection.commit()
    assert caught.value.args[0] == LOST


def test_without_rules_everything_passes(client: pymysql.Connection, database: str) -> None:
    big = "x" * 5_000_000
    with client.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SELECT %s, LENGTH(%s)", ("short", big[:1_000_000]))
        assert cursor.fetchall() == (("short", 1_000_000),)
        cursor.execute("SELECT REPEAT('x', 5000000)")
        assert cursor.fetchone() == (big,)
    insert(client, "half", 1)
    client.commit()
    assert rows(database, "half") == [1]


def test_the_client_is_offered_no_tls(client: pymysql.Connection) -> None:
    with client.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cursor.fetchone() == ("Ssl_cipher", "")


@pytest.mark.parametrize("callback", [False, True])
def test_cut_before_commit_leaves_nothing(
    proxy: MySqlProxy, client: pymysql.Connection, database: str, callback: bool
) -> None:
    called = threading.Event()
    rule = proxy.on_commit(when="before", action=called.set if callback else "cut")
    insert(client, "half", 1)
    assert_commit_is_lost(client)
    rule.wait(5)
    assert called.is_set() == callback
    assert rows(database, "half") == []


@pytest.mark.parametrize("callback", [False, True])
def test_cut_after_commit_leaves_the_row_though_the_client_lost_it(
    proxy: MySqlProxy, client: pymysql.Connection, database: str, callback: bool
) -> None:
    seen: list[list[int]] = []
    rule = proxy.on_commit(when="after", action=(lambda: seen.append(rows(database, "half"))) if callback else "cut")
    insert(client, "half", 1)
    assert_commit_is_lost(client)
    rule.wait(5)
    assert rows(database, "half") == [1]
    assert seen == ([[1]] if callback else [])


def test_a_late_commit_takes_effect_after_its_client_was_cut_off(
    proxy: MySqlProxy, client: pymysql.Connection, database: str
) -> None:
    rule = proxy.on_commit(when="before", action=Late(0.5))
    insert(client, "half", 1)
    assert_commit_is_lost(client)
    assert rule.fired == 0
    with connect(database) as other, other.cursor() as cursor:
        # The row is still locked; whoever wants it waits for the COMMIT.
        cursor.execute("SELECT id FROM half WHERE id = 1 FOR UPDATE")
        assert cursor.fetchall() == ((1,),)
    rule.wait(5)


def test_a_statement_that_is_kept_succeeds_for_the_client_and_changes_nothing(
    proxy: MySqlProxy, client: pymysql.Connection, database: str
) -> None:
    rule = proxy.on_statement("INSERT", when="before", action=Kept())
    insert(client, "half", 1)
    assert rule.fired == 1
    insert(client, "half", 2)
    client.commit()
    assert rows(database, "half") == [2]


def test_then_calls_and_lets_pass(proxy: MySqlProxy, client: pymysql.Connection, database: str) -> None:
    seen: list[list[int]] = []
    proxy.on_commit(when="before", action=Then(lambda: seen.append(rows(database, "half"))))
    proxy.on_commit(when="after", action=Then(lambda: seen.append(rows(database, "half"))))
    insert(client, "half", 1)
    client.commit()
    insert(client, "half", 2)
    client.commit()
    assert seen == [[], [1, 2]]


def test_only_transactions_that_wrote_the_table_match(
    proxy: MySqlProxy, client: pymysql.Connection, database: str
) -> None:
    rule = proxy.on_commit(matching=r"INSERT INTO op_record", when="after", action="cut")
    insert(client, "half", 1)
    client.commit()
    insert(client, "op_record", 1)
    client.rollback()
    insert(client, "half", 2)
    client.commit()
    assert rule.fired == 0
    insert(client, "op_record", 2)
    insert(client, "half", 3)
    assert_commit_is_lost(client)
    assert rule.fired == 1
    assert rows(database, "op_record") == [2]


def test_skip_and_times_choose_the_commits(proxy: MySqlProxy, database: str) -> None:
    rule = proxy.on_commit(when="before", action="cut", skip=2, times=2)
    outcomes = []
    for number in range(6):
        with connect(proxy.url(database)) as connection:
            insert(connection, "half", number)
            try:
                connection.commit()
                outcomes.append("ok")
            except pymysql.err.OperationalError:
                outcomes.append("lost")
    assert outcomes == ["ok", "ok", "lost", "lost", "ok", "ok"]
    assert rule.fired == 2
    assert rows(database, "half") == [0, 1, 4, 5]


def test_a_rule_that_did_not_act_says_so(proxy: MySqlProxy) -> None:
    rule = proxy.on_commit(when="before", action="cut")
    with pytest.raises(TimeoutError, match="acted 0 of 1 times"):
        rule.wait(0.01)


@pytest.mark.parametrize("when", ["before", "after"])
def test_delay(proxy: MySqlProxy, client: pymysql.Connection, database: str, when: When) -> None:
    proxy.on_commit(when=when, action=Delay(0.3))
    insert(client, "half", 1)
    begun = time.monotonic()
    client.commit()
    assert time.monotonic() - begun >= 0.3
    assert rows(database, "half") == [1]


def test_an_injected_error_leaves_the_connection_usable(
    proxy: MySqlProxy, client: pymysql.Connection, database: str
) -> None:
    proxy.on_statement(r"^INSERT INTO op_record", when="before", action=SqlError(1213, "40001", "Deadlock found"))
    insert(client, "half", 1)
    with pytest.raises(pymysql.err.OperationalError) as caught:
        insert(client, "op_record", 1)
    assert caught.value.args == (1213, "Deadlock found")
    client.rollback()
    insert(client, "op_record", 2)
    client.commit()
    assert rows(database, "half") == []
    assert rows(database, "op_record") == [2]


@pytest.mark.parametrize("broken", ["half", "op_record"])
def test_of_several_statements_one_fails_and_none_after_it_is_done(
    proxy: MySqlProxy, database: str, broken: str
) -> None:
    error = SqlError(1205, message="Lock wait timeout exceeded")
    rule = proxy.on_statement(f"^INSERT INTO {broken}", when="before", action=error)
    both = "INSERT INTO half VALUES (1);\nINSERT INTO op_record VALUES (1)"
    with connect(proxy.url(database), client_flag=CLIENT.MULTI_STATEMENTS) as client, client.cursor() as cursor:
        with pytest.raises(pymysql.err.OperationalError) as caught:
            assert cursor.execute(both) == 1
            cursor.nextset()
        assert caught.value.args == (1205, "Lock wait timeout exceeded")
        assert rule.fired == 1
        client.commit()
        done = [1] if broken == "op_record" else []
        assert (rows(database, "half"), rows(database, "op_record")) == (done, [])


def test_a_commit_behind_slow_statements_has_succeeded_after_its_own_reply(proxy: MySqlProxy, database: str) -> None:
    seen: list[list[int]] = []
    proxy.on_commit(when="after", action=Then(lambda: seen.append(rows(database, "half"))))
    # Results that come one by one: with rows, without, and long after the one before.
    parts = [
        "INSERT INTO half VALUES (1)",
        "SELECT id, 'x' FROM half",
        "SELECT 1 FROM half WHERE id > 9",
        "DO SLEEP(0.3)",
    ]
    with connect(proxy.url(database), client_flag=CLIENT.MULTI_STATEMENTS) as client, client.cursor() as cursor:
        cursor.execute(";\n".join([*parts, "COMMIT"]))
        while cursor.nextset():
            pass
    assert seen == [[1]]


def test_of_several_statements_each_is_remembered(proxy: MySqlProxy, database: str) -> None:
    rule = proxy.on_commit(matching="^INSERT INTO op_record", when="before", action="cut")
    with connect(proxy.url(database), client_flag=CLIENT.MULTI_STATEMENTS) as client:
        with client.cursor() as cursor:
            cursor.execute("INSERT INTO half VALUES (1);\nINSERT INTO op_record VALUES (1)")
            assert cursor.nextset()
        assert_commit_is_lost(client)
        assert rule.fired == 1


def test_a_statement_that_fails_by_itself_does_not_spend_the_rule(
    proxy: MySqlProxy, client: pymysql.Connection, database: str
) -> None:
    rule = proxy.on_statement(r"INSERT INTO half", when="after", action="cut")
    with connect(database) as other:
        insert(other, "half", 1)
        other.commit()
    with pytest.raises(pymysql.err.IntegrityError):
        insert(client, "half", 1)
    assert rule.fired == 0
    with pytest.raises(pymysql.err.OperationalError):
        insert(client, "half", 2)
    assert rule.fired == 1


def test_an_error_cannot_follow_success() -> None:
    with (
        MySqlProxy("127.0.0.1", 1) as proxy,
        pytest.raises(ValueError, match="when='before'"),
    ):
        proxy.on_commit(when="after", action=SqlError(1213))


def test_pause_holds_and_resume_lets_pass(proxy: MySqlProxy, client: pymysql.Connection, database: str) -> None:
    insert(client, "half", 1)
    proxy.pause()
    committed = threading.Event()

    def commit() -> None:
        client.commit()
        committed.set()

    thread = threading.Thread(target=commit)
    thread.start()
    assert not committed.wait(0.3)
    assert rows(database, "half") == []
    proxy.resume()
    assert committed.wait(10)
    thread.join()
    assert rows(database, "half") == [1]


def test_cut_all_ends_connections_and_new_ones_are_served(
    proxy: MySqlProxy, client: pymysql.Connection, database: str
) -> None:
    insert(client, "half", 1)
    proxy.cut_all()
    with pytest.raises(pymysql.err.Error):
        client.commit()
    assert rows(database, "half") == []
    with connect(proxy.url(database)) as again:
        insert(again, "half", 2)
        again.commit()
    assert rows(database, "half") == [2]


def test_a_server_that_is_down_looks_down() -> None:
    with MySqlProxy("127.0.0.1", 1) as proxy, pytest.raises(pymysql.err.OperationalError):
        connect(proxy.url("mysql+pymysql://user:secret@127.0.0.1:1/none"), connect_timeout=5)


def test_many_connections_at_once_lose_exactly_what_they_are_told(proxy: MySqlProxy, database: str) -> None:
    rule = proxy.on_commit(matching="INSERT INTO half", when="after", action="cut", times=40, skip=5)
    outcomes: list[str] = []

    def work(worker: int) -> None:
        for number in range(20):
            try:
                with connect(proxy.url(database), read_timeout=10) as connection:
                    insert(connection, "half", worker * 100 + number)
                    connection.commit()
                outcomes.append("ok")
            except pymysql.err.OperationalError:
                outcomes.append("lost")

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert rule.fired == 40
    assert outcomes.count("lost") == 40
    assert len(rows(database, "half")) == 160
