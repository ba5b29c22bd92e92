"""Statements in a block that end its local transaction, or may: orders and messages agree, with fence and outbox."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from producer_sdk import (
    ConfigurationError,
    HalfMessages,
    LocalTransactionEnded,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionState,
)
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox, RelaySettings
from support.databases import in_ci
from ways.shops import Shop, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.embedded import EmbeddedBroker

MYSQL = {"mysql", "mariadb"}
STORES = ["fence", "outbox"]


@dataclass
class Library:
    """SQLAlchemy or Django, as a user has it in a block."""

    given: Any
    run: Callable[[str], object]
    savepoint: Callable[[], Any]


@pytest.fixture(params=["sqlalchemy", "django", "mysqlclient"])
def library(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Library]:
    """A Session or a connection of Django's; with mysqlclient SQLAlchemy too, whose driver tells of no transaction."""
    if request.param == "django":
        from django.db import connections, transaction

        alias = request.getfixturevalue("alias")

        def run(sql: str) -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute(sql)

        yield Library(connections[alias], run, lambda: transaction.atomic(using=alias))
        return
    engine = shop.engine
    if request.param == "mysqlclient":
        if shop.kind not in MYSQL:
            pytest.skip("mysqlclient is a driver of MySQL and MariaDB")
        if not in_ci():
            pytest.importorskip("MySQLdb")
        engine = sa.create_engine(shop.url.replace("+pymysql", "+mysqldb"))
    with Session(engine) as session:
        yield Library(session, lambda sql: session.execute(sa.text(sql)), session.begin_nested)
    if engine is not shop.engine:
        engine.dispose()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, shop: Shop) -> TransactionFence | Outbox:
    made: TransactionFence | Outbox = (
        TransactionFence(shop.engine)
        if request.param == "fence"
        else Outbox(shop.engine, settings=RelaySettings(poll=0.05))
    )
    made.create_tables()
    return made


@pytest.fixture
def producer(store: TransactionFence | Outbox, broker: EmbeddedBroker) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as made:
        yield made


@pytest.fixture
def agree(
    shop: Shop,
    store: TransactionFence | Outbox,
    producer: TransactionProducer,
    library: Library,
    broker: EmbeddedBroker,
    topic: str,
) -> Callable[..., None]:
    """What is asserted at the end: these orders, and their messages."""

    def check(expected: list[str], *, messages: list[str] | None = None) -> None:
        released = expected if messages is None else messages
        # A last message shows that what came before it was released or not.
        with producer.transaction(library.given) as tx:
            tx.send(topic, "zzz")
        deadline = time.monotonic() + 30
        while "zzz" not in (found := sorted(texts(broker.endpoint, topic))) or len(found) <= len(released):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert (shop.orders(), found) == (expected, [*released, "zzz"])

    return check


def order(library: Library, content: str) -> None:
    library.run(f"INSERT INTO orders (content) VALUES ('{content}')")


ENDING = ["COMMIT", "rollback", " /* by hand */ COMMIT;", "-- by hand\nROLLBACK", "/* a */ ROLLBACK /* TO */ "]
ENDING_ON_MYSQL = [
    "CREATE TABLE further (number INT)",
    "DROP TABLE IF EXISTS orders",
    "ALTER TABLE orders ADD COLUMN price INT",
    "TRUNCATE orders",
    "RENAME TABLE orders TO sold",
    "START TRANSACTION",
    "begin",
    "SET autocommit = 1",
    "set @a = 1, @@session.AUTOCOMMIT:=ON",
    "CREATE /* TEMPORARY */ TABLE further (number INT)",
    "/*!50000 CREATE TABLE further (number INT) */",
    "/*!99999 SELECT */ COMMIT",
    "/*M!100000 TRUNCATE */ /*!40000 orders */",
    "ANALYZE TABLE orders",
    "ANALYZE LOCAL TABLE orders",
    "OPTIMIZE TABLE orders",
    "CHECK TABLE orders",
    "REPAIR NO_WRITE_TO_BINLOG TABLE orders",
    "FLUSH TABLES orders",
    "LOCK TABLES orders WRITE",
    "CACHE INDEX orders IN hot",
    "LOAD INDEX INTO CACHE orders",
    "SET PASSWORD = ''",
    "SET DEFAULT ROLE NONE TO CURRENT_USER",
    "INSTALL PLUGIN p SONAME 'p.so'",
    "UNINSTALL PLUGIN p",
    "START SLAVE",
    "STOP REPLICA",
    "CHANGE MASTER TO MASTER_HOST = 'x'",
    "RESET SLAVE",
    "IMPORT TABLE FROM 'x'",
]


def test_what_ends_a_transaction_is_refused_before_it_runs(
    library: Library, shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    statements = [*ENDING, *(ENDING_ON_MYSQL if shop.kind in MYSQL else [])]
    for statement in statements:
        with pytest.raises(LocalTransactionEnded, match="was not run"), producer.transaction(library.given) as tx:
            order(library, "lamp")
            tx.send(topic, "lamp")
            library.run(statement)
    for number, statement in enumerate(statements):
        with producer.transaction(library.given) as tx:
            order(library, f"{number:02}")
            with pytest.raises(LocalTransactionEnded, match="was not run"):
                library.run(statement)
            tx.send(topic, f"{number:02}")
    agree([f"{number:02}" for number in range(len(statements))])


@pytest.mark.parametrize("failing", [False, True])
def test_a_procedure_that_commits(
    library: Library, shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str, failing: bool
) -> None:
    if shop.kind not in MYSQL:
        pytest.skip("procedures commit inside of a transaction on MySQL and MariaDB alone")
    fails = "; SIGNAL SQLSTATE '45000'" if failing else ""
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE PROCEDURE booked() BEGIN COMMIT{fails}; END")
    # The first order is committed by the procedure, and so is its message; what follows it does not run.
    with pytest.raises(LocalTransactionEnded), producer.transaction(library.given) as tx:
        tx.send(topic, "lamp")
        order(library, "lamp")
        with contextlib.suppress(Exception):
            library.run("CALL booked()")
        order(library, "chair")
    agree(["lamp"])


def test_what_might_end_a_transaction_and_does_not(
    library: Library, shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    statements = [
        "SAVEPOINT/*a*/here",
        "ROLLBACK/*b*/TO/**/here",
        "ROLLBACK -- c\n TO SAVEPOINT here",
        "RELEASE/*d*/SAVEPOINT/*e*/here",
        *{
            "sqlite": ["CREATE TABLE further (number INT)", "PRAGMA user_version"],
            "postgresql": ["CREATE TABLE further (number INT)", "SET LOCAL search_path = public", "ANALYZE orders"],
        }.get(
            shop.kind,
            [
                "CREATE /* a */ TEMPORARY TABLE further (number INT)",
                "DROP/**/TEMPORARY/**/TABLE further",
                "SET @a = 1",
                "/*!50000 SET @a = 1 */",
                "/*!50000 SELECT 1 */",
                "SET autocommit = 0",
                "CALL counted()",
            ],
        ),
    ]
    if shop.kind in MYSQL:
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("CREATE PROCEDURE counted() BEGIN SET @b = 1; END")
    with producer.transaction(library.given) as tx:
        order(library, "lamp")
        with library.savepoint():
            order(library, "chair")
            for statement in statements:
                library.run(statement)
        tx.send(topic, "chair")
        library.run(statements[-1])
        tx.send(topic, "lamp")
    agree(["chair", "lamp"])


def test_what_is_refused_is_named_without_its_comments(
    library: Library, shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    with producer.transaction(library.given) as tx:
        for statement in ("/* ours: ROLLBACK TO */ -- or not\n ( COMMIT;", "COMMIT", "/*a*/COMMIT/*b*/"):
            with pytest.raises(LocalTransactionEnded, match=r"^COMMIT would end"):
                library.run(statement)
        order(library, "lamp")
        tx.send(topic, "lamp")
    agree(["lamp"])


def test_a_lock_that_took_too_long_and_whose_error_is_caught(
    library: Library, shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    """The server ends the statement alone, unless it is set otherwise (innodb_rollback_on_timeout)."""
    if shop.kind not in MYSQL:
        pytest.skip("SQLite locks all of it, and PostgreSQL refuses what follows by itself")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (item INT PRIMARY KEY, count INT)")
        connection.exec_driver_sql("INSERT INTO stock VALUES (1, 1)")
    with shop.engine.connect() as other, producer.transaction(library.given) as tx:
        other.exec_driver_sql("UPDATE stock SET count = 0 WHERE item = 1")
        library.run("SET SESSION innodb_lock_wait_timeout = 1")
        order(library, "lamp")
        tx.send(topic, "lamp")
        with pytest.raises(Exception, match="1205"):
            library.run("UPDATE stock SET count = 9 WHERE item = 1")
        order(library, "chair")
        tx.send(topic, "chair")
    agree(["chair", "lamp"])


def test_a_procedure_that_commits_called_by_its_name(
    library: Library,
    shop: Shop,
    producer: TransactionProducer,
    agree: Callable[..., None],
    topic: str,
    request: pytest.FixtureRequest,
) -> None:
    """cursor.callproc() of Django passes none of its wrappers."""
    if shop.kind not in MYSQL or "django" not in request.node.callspec.id:
        pytest.skip("Django's, with procedures that commit")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE PROCEDURE booked() BEGIN COMMIT; END")
    with pytest.raises(LocalTransactionEnded), producer.transaction(library.given) as tx:
        order(library, "lamp")
        tx.send(topic, "lamp")
        with library.given.cursor() as cursor:
            cursor.callproc("booked")
        order(library, "chair")
        tx.send(topic, "chair")
    agree(["lamp"])


def test_an_error_in_a_savepoint_that_is_caught(
    library: Library, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    with producer.transaction(library.given) as tx:
        order(library, "lamp")
        with contextlib.suppress(Exception), library.savepoint():
            order(library, "lamp")
        tx.send(topic, "lamp")
    with producer.transaction(library.given) as tx:
        order(library, "tent")
        tx.send(topic, "tent")
        with contextlib.suppress(Exception), library.savepoint():
            order(library, "lamp")
    agree(["lamp", "tent"])


def test_a_deadlock_whose_error_is_caught(
    library: Library, shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    """The server has rolled all of it back; what follows would be half of the block."""
    if shop.kind not in MYSQL:
        pytest.skip("SQLite has no deadlocks, and PostgreSQL refuses what follows by itself")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (item INT PRIMARY KEY, count INT)")
        connection.exec_driver_sql("INSERT INTO stock VALUES (1, 1), (2, 2)")
        connection.exec_driver_sql("CREATE TABLE much (number INT)")
    reached = threading.Event()

    def other() -> None:
        with shop.engine.begin() as connection:
            # The server ends the transaction that has changed less.
            connection.exec_driver_sql("INSERT INTO much VALUES " + ", ".join(f"({each})" for each in range(500)))
            connection.exec_driver_sql("UPDATE stock SET count = 0 WHERE item = 2")
            reached.set()
            connection.exec_driver_sql("UPDATE stock SET count = 0 WHERE item = 1")

    opponent = threading.Thread(target=other)
    with pytest.raises(LocalTransactionEnded), producer.transaction(library.given) as tx:
        order(library, "lamp")
        tx.send(topic, "lamp")
        library.run("UPDATE stock SET count = 9 WHERE item = 1")
        opponent.start()
        reached.wait(30)
        time.sleep(0.2)
        with pytest.raises(Exception, match="1213"):
            library.run("UPDATE stock SET count = 9 WHERE item = 2")
        with contextlib.suppress(LocalTransactionEnded):
            order(library, "chair")
        with contextlib.suppress(LocalTransactionEnded):
            tx.send(topic, "chair")
    opponent.join(30)
    agree([])


def test_a_message_in_a_savepoint_that_is_rolled_back(
    library: Library,
    store: TransactionFence | Outbox,
    producer: TransactionProducer,
    agree: Callable[..., None],
    topic: str,
) -> None:
    refused = isinstance(store, TransactionFence)
    raised = pytest.raises(LocalTransactionEnded, match="savepoint") if refused else contextlib.nullcontext()
    with raised, producer.transaction(library.given) as tx:
        order(library, "lamp")
        tx.send(topic, "lamp")
        with contextlib.suppress(KeyError), library.savepoint():
            with library.savepoint():
                order(library, "chair")
                tx.send(topic, "chair")
            raise KeyError
    with producer.transaction(library.given) as tx:
        with contextlib.suppress(KeyError), library.savepoint():
            order(library, "chair")
            raise KeyError
        with library.savepoint():
            order(library, "tent")
            tx.send(topic, "tent")
    agree(["tent"] if refused else ["lamp", "tent"])


def test_a_savepoint_that_is_still_open(
    shop: Shop, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    with Session(shop.engine) as session, producer.transaction(session) as tx:
        session.execute(sa.text("INSERT INTO orders (content) VALUES ('lamp')"))
        session.begin_nested()
        session.execute(sa.text("INSERT INTO orders (content) VALUES ('chair')"))
        session.begin_nested()
        tx.send(topic, "chair")
        tx.send(topic, "lamp")
    agree(["chair", "lamp"])


@pytest.mark.parametrize("of", ["engine", "connection", "session"])
def test_a_connection_that_commits_each_statement_is_refused_at_the_door(
    shop: Shop, store: TransactionFence | Outbox, producer: TransactionProducer, agree: Callable[..., None], of: str
) -> None:
    alone = sa.create_engine(shop.engine.url, isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, Session(alone) as session:
        given = {"engine": alone, "connection": connection, "session": session}[of]
        with pytest.raises(ConfigurationError, match="autocommit") as raised:
            producer.transaction(given).__enter__()
        assert raised.value.field == "database"
        connection.exec_driver_sql("INSERT INTO orders (content) VALUES ('mine')")
    agree(["mine"], messages=[])
    alone.dispose()


def test_a_connection_that_a_block_has_made_commit_each_statement(
    shop: Shop, store: TransactionFence | Outbox, producer: TransactionProducer, agree: Callable[..., None], topic: str
) -> None:
    """It does not go back to the pool."""
    if shop.kind not in MYSQL:
        pytest.skip("a statement switches it there alone")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE PROCEDURE alone() BEGIN SET autocommit = 1; END")
    engine = sa.create_engine(shop.engine.url, pool_size=1, max_overflow=0)
    for content in ("lamp", "chair"):
        session = Session(engine)
        given = engine if content == "lamp" else session
        with pytest.raises(LocalTransactionEnded), producer.transaction(given) as tx:
            tx.send(topic, content)
            connection = tx.connection if given is engine else session.connection()
            connection.exec_driver_sql(f"INSERT INTO orders (content) VALUES ('{content}')")
            connection.exec_driver_sql("CALL alone()")
        session.close()
        with engine.connect() as connection:
            assert not connection.connection.driver_connection.get_autocommit()  # type: ignore[union-attr]
            connection.exec_driver_sql("INSERT INTO orders (content) VALUES ('not committed')")
    engine.dispose()
    agree(["chair", "lamp"])


def test_checks_begin_by_a_statement_where_connections_commit_each(
    shop: Shop, store: TransactionFence | Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    if shop.kind not in MYSQL or isinstance(store, Outbox):
        pytest.skip("checks are the fence's, and a statement switches it on MySQL and MariaDB alone")
    engine = sa.create_engine(shop.engine.url, pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET autocommit = 1")
    fence = TransactionFence(engine)
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer:
        refused = producer.transaction(engine)
        with pytest.raises(ConfigurationError, match="autocommit"):
            refused.__enter__()
        sent = producer.send_in_transaction(Message(topic, "lamp"), arg=lambda _: None)
        assert sent.state is TransactionState.COMMITTED
        assert fence.check_local_transaction(HalfMessages(sent.transaction_id, ())) is LocalTransactionState.COMMIT
        other = HalfMessages(str(uuid.uuid4()), ())
        assert fence.check_local_transaction(other) is LocalTransactionState.ROLLBACK
        assert shop.fences()[other.transaction_id] == "refused"
    engine.dispose()
