"""A driver that has another session of the server than the block began on, and what runs on it beside a library."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from consumer_sdk.applied import AppliedMessages
from producer_sdk import LocalTransactionEnded, TransactionProducer
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox, RelaySettings
from support.databases import in_ci
from ways.deliveries import delivered
from ways.shops import OfDriver, OfSqlalchemy, Shop, texts, write_by_django

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.embedded import EmbeddedBroker


@dataclass
class User:
    """What a block is given, the driver's connection below it, and how an order is written."""

    given: Any
    driver: Any
    write: Callable[[str], None]


@pytest.fixture(params=["mysqlclient", "sqlalchemy+mysqlclient", "sqlalchemy+pymysql", "django"])
def user(request: pytest.FixtureRequest, shop: Shop) -> Iterator[User]:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("PyMySQL and mysqlclient are drivers of MySQL and MariaDB")
    if "mysqlclient" in request.param and not in_ci():
        pytest.importorskip("MySQLdb")
    with contextlib.ExitStack() as opened:
        if request.param == "mysqlclient":
            connection = opened.enter_context(contextlib.closing(shop.connect_mysqlclient()))
            yield User(connection, connection, OfDriver(connection).write)
        elif request.param == "django":
            from django.db import connections

            alias = request.getfixturevalue("alias")
            connections[alias].ensure_connection()
            yield User(connections[alias], connections[alias].connection, lambda text: write_by_django(alias, text))
        else:
            driver = "pymysql" if request.param.endswith("pymysql") else "mysqldb"
            engine = sa.create_engine(shop.url.replace("+pymysql", f"+{driver}"), pool_size=1, max_overflow=0)
            opened.callback(engine.dispose)
            with engine.connect() as connection:
                below = connection.connection.driver_connection
            session = opened.enter_context(Session(engine))
            yield User(session, below, OfSqlalchemy(session).write)


@pytest.fixture(params=["fence", "outbox"])
def producer(request: pytest.FixtureRequest, shop: Shop, broker: EmbeddedBroker) -> Iterator[TransactionProducer]:
    store: Any = TransactionFence(shop.engine)
    if request.param == "outbox":
        store = Outbox(shop.engine, settings=RelaySettings(poll=0.05))
    store.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as made:
        yield made


@pytest.fixture
def agree(
    shop: Shop, user: User, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> Callable[[list[str]], None]:
    """What is asserted at the end: these orders, and their messages."""

    def check(expected: list[str]) -> None:
        with producer.transaction(shop.engine) as tx:
            tx.send(topic, "zzz")
        deadline = time.monotonic() + 30
        while len(found := texts(broker.endpoint, topic)) <= len(expected):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert (shop.orders(), found) == (expected, [*expected, "zzz"])

    return check


def end_session(shop: Shop, user: User) -> None:
    """The server loses the connection, as it does after wait_timeout."""
    number = user.driver.thread_id()
    with shop.engine.connect() as other:
        other.exec_driver_sql(f"KILL {number}")
        deadline = time.monotonic() + 30
        while other.exec_driver_sql(f"SELECT id FROM information_schema.processlist WHERE id = {number}").fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def connect_again(user: User) -> None:
    """As users of mysqlclient do with a connection that is kept for long; it then does so by itself."""
    user.driver.ping(True)


@pytest.mark.filterwarnings("ignore:The .*reconnect:DeprecationWarning")
@pytest.mark.parametrize("before", ["nothing", "the order", "the message"])
def test_a_session_that_the_server_ends(
    shop: Shop, user: User, producer: TransactionProducer, agree: Callable[..., None], topic: str, before: str
) -> None:
    connect_again(user)
    with (
        pytest.raises(Exception, match=r"gone away|Lost connection|Packet|20\d\d"),
        producer.transaction(user.given) as tx,
    ):
        if before != "nothing":
            user.write("lamp")
        if before == "the message":
            tx.send(topic, "lamp")
        end_session(shop, user)
        user.write("chair")
        tx.send(topic, "chair")
    agree([])


@pytest.mark.filterwarnings("ignore:The .*reconnect:DeprecationWarning")
def test_a_session_that_is_connected_again_inside_of_the_block(
    shop: Shop, user: User, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    """PyMySQL tells that there is no transaction then; mysqlclient is told to connect again before it is lost."""
    with pytest.raises(LocalTransactionEnded), producer.transaction(user.given) as tx:
        user.write("lamp")
        tx.send(topic, "lamp")
        if hasattr(user.driver, "server_status"):
            end_session(shop, user)
        connect_again(user)
        user.write("chair")
    agree([])


@pytest.mark.parametrize("how", ["commit", "rollback", "change_user"])
def test_what_ends_the_transaction_beside_the_library(
    shop: Shop, user: User, producer: TransactionProducer, agree: Callable[..., None], topic: str, how: str
) -> None:
    """A statement follows, so that a transaction is open again."""
    url = sa.make_url(shop.url)
    if how == "change_user" and hasattr(user.driver, "server_status"):
        pytest.skip("PyMySQL has none")
    with pytest.raises(LocalTransactionEnded), producer.transaction(user.given) as tx:
        user.write("lamp")
        tx.send(topic, "lamp")
        getattr(user.driver, how)(*((url.username, url.password, url.database) if how == "change_user" else ()))
        with contextlib.suppress(LocalTransactionEnded):
            user.write("chair")
        with pytest.raises(LocalTransactionEnded):
            tx.send(topic, "chair")
    agree(["lamp"] if how == "commit" else [])


@pytest.mark.filterwarnings("ignore:The .*reconnect:DeprecationWarning")
def test_an_effect_whose_session_the_server_ends(shop: Shop, user: User) -> None:
    applied = AppliedMessages(shop.engine, "stock")
    applied.create_tables()
    message = delivered(dedup_key="1")
    connect_again(user)
    with pytest.raises(Exception, match=r"gone away|Lost connection|Packet|20\d\d"), applied.once(user.given, message):
        user.write("lamp")
        end_session(shop, user)
        user.write("chair")
    assert shop.orders() == []
    with shop.engine.connect() as connection, applied.once(connection, message) as fresh:
        assert fresh
        OfSqlalchemy(connection).write("lamp")
    assert shop.orders() == ["lamp"]


def test_the_connection_is_as_it_was(shop: Shop, user: User, producer: TransactionProducer, topic: str) -> None:
    """Nothing of a block stays with it: the next user's statements are told to nobody."""
    for number in range(2):
        before = dict(vars(user.driver))
        with producer.transaction(user.given) as tx:
            user.write(f"{number}")
            tx.send(topic, f"{number}")
        names = ("query", "commit", "rollback", "begin", "autocommit", "ping", "change_user")
        assert {name: vars(user.driver).get(name) for name in names} == {name: before.get(name) for name in names}
    if isinstance(user.given, Session):
        with pytest.raises(LocalTransactionEnded), producer.transaction(user.given):
            user.write("2")
            user.given.close()
            # The pool has it again, and gives it to the next one.
            with user.given.get_bind().begin() as other:  # type: ignore[union-attr]
                OfSqlalchemy(other).write("3")
        assert shop.orders() == ["0", "1", "3"]
