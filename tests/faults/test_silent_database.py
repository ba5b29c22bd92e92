"""The database of an outbox goes silent: its answers do not come, and the connection does not end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from client_core.local_database import AsyncLocalDatabase, async_databases
from client_core.local_database.databases import ANSWER_WITHIN, local_database
from faults.mixed.link import ClientLink
from producer_sdk import Message
from producer_sdk.outbox import Outbox
from support.databases import in_ci
from ways.outbox.running import until
from ways.shops import make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    from producer_sdk.testing import embedded_broker

    with embedded_broker() as made:
        yield made


@pytest.fixture(params=["mysql+pymysql", "mysql+mysqldb", "postgresql+psycopg"])
def driver(request: pytest.FixtureRequest) -> str:
    if request.param == "mysql+mysqldb" and not in_ci():
        pytest.importorskip("MySQLdb")
    return str(request.param)


@pytest.fixture
def shop(driver: str, tmp_path: Path) -> Iterator[Shop]:
    with make_shop("postgresql" if driver.startswith("postgresql") else "mariadb", tmp_path) as made:
        yield made


@pytest.fixture
def link(shop: Shop) -> Iterator[ClientLink]:
    made = ClientLink(f"{shop.engine.url.host}:{shop.engine.url.port}")
    yield made
    made.close()


def url_through(link: ClientLink, shop: Shop, driver: str) -> str:
    port = int(link.endpoint.rpartition(":")[2])
    url = make_url(shop.url).set(drivername=driver, host="127.0.0.1", port=port)
    return url.render_as_string(hide_password=False)


@contextlib.contextmanager
def relaying(url: str, endpoint: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "halfmq_cli", "relay", f"--database={url}", f"--endpoint={endpoint}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("relaying as ")
        yield process
    finally:
        process.kill()
        process.communicate()


def put(shop: Shop, outbox: Outbox, topic: str, text: str) -> None:
    with Session(shop.engine) as session:
        outbox.put(session, Message(topic, text))
        session.commit()


def left(outbox: Outbox) -> int:
    return sum(outbox.status().counts.values())


def test_the_relay_goes_on_by_another_connection(
    shop: Shop, link: ClientLink, driver: str, broker: EmbeddedBroker
) -> None:
    if driver.startswith("postgresql"):
        pytest.skip("libpq leaves it to the kernel, for which the connection to the proxy is well")
    topic = f"silent-{driver.partition('+')[2]}"
    outbox = Outbox(shop.engine)
    outbox.create_tables()
    with relaying(url_through(link, shop, driver), broker.endpoint):
        put(shop, outbox, topic, "before")
        until(lambda: left(outbox) == 0)
        link.forget()
        put(shop, outbox, topic, "after")
        until(lambda: left(outbox) == 0, 120)
    assert texts(broker.endpoint, topic) == ["after", "before"]


def test_the_relay_ends_in_time(shop: Shop, link: ClientLink, driver: str, broker: EmbeddedBroker) -> None:
    outbox = Outbox(shop.engine)
    outbox.create_tables()
    with relaying(url_through(link, shop, driver), broker.endpoint) as process:
        until(lambda: outbox.status().relay)
        link.lose_answers()
        # It is in a statement by then, or soon.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert process.returncode in {0, 1}
    assert "Traceback" not in log


def test_engines_of_a_url_have_limits(shop: Shop, driver: str) -> None:
    if driver == "mysql+mysqldb":
        pytest.skip("its connections do not tell")
    url = make_url(shop.url).set(drivername=driver)
    assert _limit(url.render_as_string(hide_password=False), driver) == ANSWER_WITHIN
    name, value = ("tcp_user_timeout", "7000") if driver.startswith("postgresql") else ("read_timeout", "7")
    own = url.update_query_dict({name: value})
    assert _limit(own.render_as_string(hide_password=False), driver) == 7


def _limit(url: str, driver: str) -> float:
    """Seconds that a connection waits for an answer."""
    database = local_database(url)
    with database.transaction() as local:
        connection: Any = local._on()  # type: ignore[attr-defined]
        raw = connection.connection.driver_connection
        if driver == "mysql+pymysql":
            found = float(raw._read_timeout)
        else:
            with socket.socket(fileno=raw.pgconn.socket) as shared:
                found = shared.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
                shared.detach()
    database.close()
    return found


@pytest.mark.parametrize("driver", ["mysql+aiomysql", "postgresql+asyncpg"])
def test_on_asyncio_the_connection_is_ended(
    shop: Shop, link: ClientLink, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_databases, "ANSWER_WITHIN", 2)

    async def work() -> None:
        database = AsyncLocalDatabase(url_through(link, shop, driver))

        async def ask() -> object:
            return await database.run(_one)

        assert await ask() == [(1,)]
        link.forget()
        with pytest.raises(Exception, match=r"(?i)connection|closed|lost"):
            await asyncio.wait_for(ask(), 60)
        assert await asyncio.wait_for(ask(), 60) == [(1,)]
        await database.close()

    asyncio.run(work())


def _one(database: Any) -> Any:
    with database.transaction() as local:
        return local.fetch("SELECT 1")
