"""The outbox without a relay: the broker's tables are on the shop's server, and a transaction writes both."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from consumer_sdk import QueueReader
from producer_sdk import AsyncTransactionProducer, ConfigurationError, Message, TransactionProducer
from producer_sdk.outbox import AsyncOutbox, Outbox
from producer_sdk.testing import embedded_broker
from support.databases import ALL_KINDS, connect, create_database, drop_database, server_url
from support.listings import listing_with
from support.patience import HANG
from ways.shops import FORMS, ORDER, Shop, make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.embedded import EmbeddedBroker
    from support.databases import AnyKind

EXAMPLE = Path(__file__).parents[3] / "examples" / "ways" / "same_server.py"
WRITERS = 3
KILLS = int(os.environ.get("HALFMQ_OUTBOX_KILLS", "4"))


@dataclass
class Server:
    """A server with the shop's database and the broker's."""

    shop: Shop
    broker: EmbeddedBroker
    broker_url: str
    tables: str

    def outbox(self, **settings: Any) -> Outbox:
        made = Outbox(self.shop.engine, same_server=True, broker_tables=self.tables, **settings)
        made.create_tables()
        return made

    def until(self, count: int, topic: str) -> list[str]:
        deadline = time.monotonic() + 30
        while len(found := texts(self.broker.endpoint, topic)) < count:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found

    def until_released(self) -> None:
        """Waits until the brokers have taken all that is committed."""
        deadline = time.monotonic() + 30
        while self.submissions():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def submissions(self) -> int:
        with self.shop.engine.connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT COUNT(*) FROM {self.tables}submission").scalar_one())


@pytest.fixture(params=ALL_KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind: AnyKind = request.param
    with make_shop(kind, tmp_path_factory.mktemp("shop")) as shop:
        if kind == "sqlite":
            url, tables = shop.url, ""
        else:
            url = create_database(server_url(kind))
            tables = f"{url.rpartition('/')[2]}."
        with embedded_broker(database=url) as broker:
            yield Server(shop, broker, url, tables)
        if kind != "sqlite":
            drop_database(url)


def test_the_example_runs(server: Server) -> None:
    url = server.shop.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, str(EXAMPLE), server.broker.endpoint, url, *filter(None, [server.tables.rstrip(".")])]
    assert subprocess.run(command, capture_output=True, check=True, timeout=HANG).stdout == b"committed\n"
    assert server.shop.orders() == server.until(1, "orders") == ["a clock"]


def test_the_listing_of_the_page_runs(server: Server) -> None:
    """And its statement, which a program in any language may run."""
    names: dict[str, Any] = {"engine": server.shop.engine, "broker_tables": server.tables, "text": sa.text}
    names |= {"endpoint": server.broker.endpoint, "Session": Session, "TransactionProducer": TransactionProducer}
    listing = listing_with("docs/ways/outbox.md", "from producer_sdk.outbox import Outbox")
    exec(compile(listing.text, str(listing), "exec"), names)
    statement = listing_with("docs/ways/outbox.md", "INSERT INTO halfmq.submission").text
    with server.shop.engine.begin() as connection:
        connection.exec_driver_sql(statement.replace("halfmq.", server.tables))
    assert server.shop.orders() == ["clock"]
    assert server.until(2, "orders") == ["clock", '{"id": 7}']


@pytest.mark.parametrize("form", FORMS)
def test_both_are_there_or_neither(server: Server, form: str) -> None:
    outbox = server.outbox()
    with TransactionProducer(server.broker.endpoint, "shop", outbox) as producer, FORMS[form](server.shop) as work:
        with producer.transaction(work.given) as tx:
            work.write("lamp")
            tx.send("orders", "lamp")
        with pytest.raises(KeyError), producer.transaction(work.given) as tx:
            work.write("yacht")
            tx.send("orders", "yacht")
            raise KeyError
        with producer.transaction(work.given) as tx:
            work.write("desk")
            tx.send("orders", "desk")
    assert server.shop.orders() == ["desk", "lamp"]
    assert server.until(2, "orders") == ["desk", "lamp"]


def test_all_parts_of_a_message_arrive(server: Server) -> None:
    outbox = server.outbox()
    message = Message(
        "orders",
        b"\x00\xff lamp",
        tag="t",
        keys=["k", "ä"],
        properties={"a": "ö"},
        message_group="g",
        dedup_key="7",
    )
    with Session(server.shop.engine) as session, session.begin():
        own_id = outbox.put(session, message)
        outbox.put(session, Message("orders", "later", delay=3600))
        outbox.put(session, Message("orders", "another", dedup_key="7"))
    server.until_released()
    with QueueReader(server.broker.endpoint) as reader:
        found = [
            each
            for queue in reader.queue_offsets("orders")
            for each in reader.read_queue("orders", queue.queue, 0, 10).messages
        ]
    (stored,) = found
    assert (stored.message_id, stored.body, stored.tag) == (own_id, b"\x00\xff lamp", "t")
    assert (stored.keys, stored.message_group, stored.dedup_key) == (("k", "ä"), "g", "7")
    assert stored.properties["a"] == "ö"


async def test_on_asyncio(server: Server) -> None:
    engine = create_async_engine(server.shop.async_url)
    outbox = AsyncOutbox(engine, same_server=True, broker_tables=server.tables)
    await outbox.create_tables()
    async with AsyncTransactionProducer(server.broker.endpoint, "shop", outbox) as producer:
        async with AsyncSession(engine) as session, producer.transaction(session) as tx:
            await session.execute(ORDER, {"content": "lamp"})
            await tx.send("orders", b"\xff lamp".decode("latin-1"))
        with pytest.raises(ConfigurationError, match="nothing to work on"):
            await outbox.status()
    await engine.dispose()
    assert server.until(1, "orders") == ["ÿ lamp"]
    assert server.shop.orders() == ["lamp"]


def test_what_needs_a_table_of_its_own_says_so(server: Server) -> None:
    outbox = server.outbox()
    message = Message("orders", "lamp")
    calls: list[Callable[[], object]] = [
        outbox.status,
        outbox.errors,
        lambda: outbox.announce(message),
        lambda: outbox.cancel("x"),
        lambda: outbox.state("x"),
        lambda: outbox.retry([1]),
        lambda: outbox.skip([1]),
        lambda: outbox.relay(None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="nothing to work on"):
            call()
    with Session(server.shop.engine) as session, session.begin():
        session.execute(ORDER, {"content": "lamp"})
        with pytest.raises(ConfigurationError, match="nothing to work on"):
            outbox.confirm(session, "x")
        for rest in ({"decide_after": 1}, {"deadline": 1}):
            with pytest.raises(ConfigurationError, match="leave same_server out"):
                outbox.put(session, message, **rest)


def test_tables_that_are_not_there_are_named(server: Server) -> None:
    for tables in ("nowhere.", "hq_"):
        outbox = Outbox(server.shop.engine, same_server=True, broker_tables=tables)
        with pytest.raises(ConfigurationError, match=rf"{tables}submission.*GRANT INSERT") as refused:
            outbox.create_tables()
        assert refused.value.field == "broker_tables"
    with pytest.raises(ConfigurationError, match="broker_tables is what precedes"):
        Outbox(server.shop.engine, same_server=True, broker_tables="a; DROP TABLE orders")


def test_a_connection_that_commits_by_itself_sends_nothing(server: Server) -> None:
    engine = server.shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    outbox = server.outbox()
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        outbox.put(connection, Message("orders", "yacht"))
    with Session(server.shop.engine) as session, session.begin():
        outbox.put(session, Message("orders", "lamp"))
    assert server.until(1, "orders") == ["lamp"]


def test_postgresql_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        make_shop("postgresql", tmp_path_factory.mktemp("shop")) as shop,
        pytest.raises(ConfigurationError, match="not on PostgreSQL"),
    ):
        Outbox(shop.engine, same_server=True).create_tables()


@pytest.mark.parametrize("server", ["mariadb", "mysql"], indirect=True)
def test_the_right_to_insert_is_enough(server: Server) -> None:
    user = f"shop_{random.randrange(1 << 30)}"
    engine = server.shop.engine.url.set(username=user, password="secret")
    name = server.shop.engine.url.database
    with connect(server_url(server.shop.kind), autocommit=True) as connection, connection.cursor() as cursor:  # type: ignore[arg-type]
        cursor.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'")
        cursor.execute(f"GRANT ALL ON {name}.* TO {user}@'%'")
        page = (Path(__file__).parents[3] / "docs" / "ways" / "outbox.md").read_text(encoding="utf-8")
        (right,) = re.findall(r"(GRANT INSERT .*?);", page, re.S)
        cursor.execute(right.replace("halfmq.", server.tables).replace("'shop'", user))
    try:
        own = sa.create_engine(engine)
        outbox = Outbox(own, same_server=True, broker_tables=server.tables)
        outbox.create_tables()
        with Session(own) as session, session.begin():
            session.execute(ORDER, {"content": "lamp"})
            outbox.put(session, Message("orders", "lamp"))
        own.dispose()
        assert server.until(1, "orders") == ["lamp"]
    finally:
        with connect(server_url(server.shop.kind), autocommit=True) as connection, connection.cursor() as cursor:  # type: ignore[arg-type]
            cursor.execute(f"DROP USER {user}@'%'")


WRITER = """
import random, sys
import sqlalchemy as sa
from producer_sdk import TransactionProducer
from producer_sdk.outbox import Outbox
url, endpoint, tables, writer = sys.argv[1:]
engine = sa.create_engine(url)
order = sa.text("INSERT INTO orders (content) VALUES (:content)")
with TransactionProducer(endpoint, "shop", Outbox(engine, same_server=True, broker_tables=tables)) as producer:
    print("ready", flush=True)
    number = 0
    while True:
        content = f"{writer}-{number}"
        try:
            with engine.connect() as connection, producer.transaction(connection) as tx:
                connection.execute(order, {"content": content})
                tx.send("orders", content, message_group=writer)
                if random.random() < 0.2:
                    raise KeyError
        except KeyError:
            pass
        number += 1
"""


@pytest.mark.parametrize("server", ["mariadb", "mysql"], indirect=True)
def test_writers_that_are_killed(server: Server) -> None:
    """Orders and messages are the same, each once, and those of a writer in its order."""
    server.outbox()
    url = server.shop.engine.url.render_as_string(hide_password=False)

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, url, server.broker.endpoint, server.tables, name]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    writers = [start(f"w{number}x0") for number in range(WRITERS)]
    try:
        for cycle in range(KILLS):
            killed = writers[cycle % WRITERS]
            assert killed.stdout is not None
            assert killed.stdout.readline() == "ready\n"
            before, deadline = len(server.shop.orders()), time.monotonic() + 30
            while len(server.shop.orders()) < before + 10:
                assert time.monotonic() < deadline
                time.sleep(random.uniform(0.0, 0.05))
            kill(killed)
            writers[cycle % WRITERS] = start(f"w{cycle % WRITERS}x{cycle + 1}")
    finally:
        for writer in writers:
            kill(writer)
    # The server may still commit what a writer sent before it was killed.
    deadline = time.monotonic() + 30
    while True:
        server.until_released()
        if texts(server.broker.endpoint, "orders") == (orders := server.shop.orders()):
            break
        assert time.monotonic() < deadline
    assert len(orders) > 20
    order: dict[str, list[int]] = {}
    with QueueReader(server.broker.endpoint) as reader:
        for queue in reader.queue_offsets("orders"):
            for message in reader.read_queue("orders", queue.queue, 0, 100_000).messages:
                order.setdefault(message.message_group or "", []).append(int(message.text.partition("-")[2]))
    assert all(numbers == sorted(numbers) for numbers in order.values())
