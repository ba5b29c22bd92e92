"""Many tables, also such as are dropped: what is stored of them stays small, and no row is lost or doubled."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from client_core.connection import Connection
from connect.cdc.sources import Capture, Source, Topic, settings
from halfmq_connect.cdc import publishing, run
from halfmq_connect.cdc import state as state_module
from halfmq_connect.cdc.errors import CannotFollow, Interrupted
from halfmq_connect.cdc.positions import MariaDbPosition, MySqlPosition
from halfmq_connect.cdc.sink import Sink
from halfmq_connect.cdc.state import LOOK_BYTES, State

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = "表" * 46
"""With four digits, as long as a name of a file lets it be."""


def stored(source: Source, endpoint: str, *more: str) -> tuple[State, int]:
    """The state of the subscription, and its size; with the names of more tables it is stored again."""
    with closing(Sink(Connection(endpoint), "shop")) as sink:
        raw = sink.claim()
        assert raw is not None
        parse: Any = MySqlPosition.parse if source.kind == "mysql" else MariaDbPosition.parse
        state = State.decode(raw, source.kind, parse)
        if more:
            state.tables.update(dict.fromkeys(more))
            raw = state.encode(source.kind)
            sink.commit([], raw)
        return state, len(raw)


@pytest.fixture
def as_weak(source: Source) -> dict[str, Any]:
    """Settings of a user who may read `shop` and `left`, not `aside`."""
    source.run(
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("left_out", "aside")),
        *(f"CREATE DATABASE {name}" for name in ("left_out", "aside")),
        "DROP USER IF EXISTS weak",
        "CREATE USER weak IDENTIFIED BY 'halfmq'",
        "GRANT SELECT, LOCK TABLES ON shop.* TO weak",
        "GRANT SELECT ON left_out.* TO weak",
        "GRANT SELECT ON nowhere.* TO weak",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO weak",
    )
    return {"database": {"user": "weak"}}


def test_tables_that_are_gone_make_room(source: Source, endpoint: str, topic: Topic, as_weak: dict[str, Any]) -> None:
    """Not those that may not be read, nor those that are not published any more: they would be copied again."""
    kept = [
        "shop.orders",
        "left_out.kept",
        "aside.secret",
        "aside.there_or_not",
        "shop.or.so",
    ]  # Of shop, or of shop.or.
    gone = [f"shop.{LONG}{number:04d}" for number in range(4000)]
    gone += ["left_out.gone", "nowhere.gone", 'shop.we %s `ird"', "left_out.made_again"]
    source.run(*(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in kept[:3]))
    Capture(settings(endpoint, source.host, **as_weak)).stop()
    _, size = stored(source, endpoint, *kept, *gone)
    assert size > LOOK_BYTES
    with Capture(settings(endpoint, source.host, **as_weak)):
        source.run("INSERT INTO shop.orders VALUES (1)")
        topic.rows(1)
    state, size = stored(source, endpoint)
    assert set(state.tables) == set(kept)
    assert size < 1000
    source.run("CREATE TABLE left_out.made_again (id INT PRIMARY KEY)", "INSERT INTO left_out.made_again VALUES (2)")
    tables = [{"match": "shop.*", "topic": "rows"}, {"match": "left_out.*", "topic": "rows"}]
    source.run("GRANT LOCK TABLES ON left_out.* TO weak")
    with Capture(settings(endpoint, source.host, **as_weak, table=tables)):
        source.run("INSERT INTO left_out.kept VALUES (3)", "INSERT INTO left_out.made_again VALUES (4)")
        found = topic.rows(4)
    assert [(each["op"], each["after"]["id"]) for each in found] == [("r", 2), ("c", 1), ("c", 3), ("c", 4)]


@pytest.fixture
def at_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for tables that are gone all the time, and stores the position with each transaction."""
    monkeypatch.setattr(state_module, "LOOK_BYTES", 0)
    monkeypatch.setattr(publishing, "EPOCH_MESSAGES", 1)


def cut_after(monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[], None]) -> None:
    """Behind the commit of so many transactions something happens, and the session is cut off."""
    commit: Callable[..., None] = Sink.commit
    count = 0

    def cut(sink: Sink, transactions: Any, *more: Any) -> None:
        nonlocal count
        commit(sink, transactions, *more)
        count += len(transactions)
        if count == number:
            count += 1
            then()
            raise Interrupted("a cut")

    monkeypatch.setattr(Sink, "commit", cut)


@pytest.mark.usefixtures("at_each_commit")
def test_a_table_that_is_made_again_before_its_end_was_read(
    source: Source, endpoint: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, drop = "CREATE TABLE shop.orders (id INT PRIMARY KEY)", "DROP TABLE shop.orders"
    source.run(create, "CREATE TABLE shop.others (id INT PRIMARY KEY)", "INSERT INTO shop.orders VALUES (1)")
    Capture(settings(endpoint, source.host)).stop()
    source.run(*(f"INSERT INTO shop.others VALUES ({number})" for number in (2, 3)))
    source.run("INSERT INTO shop.orders VALUES (4)", drop)
    cut_after(monkeypatch, 1, lambda: source.run(create, "INSERT INTO shop.orders VALUES (5)"))
    with Capture(settings(endpoint, source.host)):
        topic.rows(5)
        source.run(drop, create, "INSERT INTO shop.orders VALUES (6)")
        found = topic.rows(6)
    assert [each["after"]["id"] for each in found] == [1, 2, 3, 4, 5, 6]
    assert [each["op"] for each in found] == ["r"] + ["c"] * 5


@pytest.mark.usefixtures("at_each_commit")
def test_a_table_that_is_made_again_after_it_was_forgotten(source: Source, endpoint: str, topic: Topic) -> None:
    create, drop = "CREATE TABLE shop.orders (id INT PRIMARY KEY)", "DROP TABLE shop.orders"
    source.run(create, "CREATE TABLE shop.others (id INT PRIMARY KEY)")
    following = settings(endpoint, source.host)

    def forgotten(number: int) -> None:
        Capture(following).stop()
        source.run(drop)
        with Capture(following):
            source.run(*(f"INSERT INTO shop.others VALUES ({number + each})" for each in (0, 1)))
            topic.rows(number + 1)
        state, _ = stored(source, endpoint)
        assert list(state.tables) == ["shop.others"]

    forgotten(1)
    with Capture(following):  # The log has all that it gets.
        source.run(create, "INSERT INTO shop.orders VALUES (3)")
        topic.rows(3)
    assert set(stored(source, endpoint)[0].tables) == {"shop.others", "shop.orders"}
    forgotten(4)
    source.run(create, "INSERT INTO shop.orders VALUES (6)")
    with Capture(following):  # Or a copy has it.
        source.run("INSERT INTO shop.orders VALUES (7)")
        found = topic.rows(7)
    assert sorted((each["after"]["id"], each["op"]) for each in found) == [
        (1, "c"), (2, "c"), (3, "c"), (4, "c"), (5, "c"), (6, "r"), (7, "c"),
    ]  # fmt: skip


def test_more_tables_than_the_state_has_room_for(
    source: Source, endpoint: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before is published, nothing behind it; with room again it goes on."""
    source.run("CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    with monkeypatch.context() as patched:
        patched.setattr(state_module, "MOST_BYTES", 2000)
        running = Capture(settings(endpoint, source.host))
        for number in range(20):
            name = f"shop.{LONG}{number:04d}"
            source.run(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES ({number})")
            source.run(f"INSERT INTO shop.orders VALUES ({number})")
        error = running.failure()
    assert isinstance(error, CannotFollow)
    assert "bytes, with the names of" in str(error)
    before = [(each["op"], each["after"]["id"]) for each in topic.rows(len(topic.read()))]
    assert 0 < len(before) < 40
    assert before == [("c", number) for number in range(20) for _ in (1, 2)][: len(before)]
    with Capture(settings(endpoint, source.host)):
        found = [each["after"]["id"] for each in topic.rows(40)]
    assert sorted(found) == sorted([*range(20)] * 2)


def test_a_table_that_is_dropped_while_the_log_is_behind_its_copy(
    source: Source, endpoint: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes in the log are told apart by its copy, also when the server does not know its key any more."""
    source.run(
        "CREATE TABLE shop.first (id INT PRIMARY KEY)",
        "INSERT INTO shop.first VALUES (1)",
        "CREATE TABLE shop.second (id INT PRIMARY KEY)",
    )
    commit: Callable[..., None] = Sink.commit
    begin = run.check_server
    copied = 0

    def cut(sink: Sink, transactions: Any, *more: Any) -> None:
        nonlocal copied
        commit(sink, transactions, *more)
        copied += len(transactions)
        if transactions and copied == 1:  # Behind the position, in front of the second table's view.
            source.run("INSERT INTO shop.second VALUES (2)")
        elif transactions and copied == 2:
            raise Interrupted("a cut")

    def drop(server: Any) -> None:
        nonlocal copied
        if copied == 2:
            copied += 1
            source.run("INSERT INTO shop.second VALUES (3)", "DROP TABLE shop.second")
        begin(server)

    monkeypatch.setattr(Sink, "commit", cut)
    monkeypatch.setattr(run, "check_server", drop)
    with Capture(settings(endpoint, source.host)):
        source.run("INSERT INTO shop.first VALUES (4)")
        found = topic.rows(4)
    assert [(each["op"], each["after"]["id"]) for each in found] == [("r", 1), ("r", 2), ("c", 3), ("c", 4)]
