"""Fences, outboxes and applied messages on users' databases: options, closing, and errors that are told as they are."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from client_core.local_database import Failure, LocalDatabase, dialect_of
from consumer_sdk.applied import AppliedMessages, AsyncAppliedMessages
from consumer_sdk.applied.application import Application
from consumer_sdk.applied.block import applying
from producer_sdk import ConfigurationError
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from producer_sdk.outbox import AsyncOutbox, Outbox
from producer_sdk.outbox.submissions import SubmissionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def async_url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/shop.db"


def applied(url: str, **options: Any) -> AppliedMessages:
    return AppliedMessages(url, "accounts", **options)


def async_applied(url: str, **options: Any) -> AsyncAppliedMessages:
    return AsyncAppliedMessages(url, "accounts", **options)


WRONG = [
    (Outbox, "decide", "x", "function of a message"),
    (Outbox, "relay", "x", "bool"),
    (Outbox, "settings", {}, "RelaySettings"),
    (Outbox, "deadline", -1, "0 or more"),
    (Outbox, "deadline", "soon", "0 or more"),
    (Outbox, "decide_after", float("nan"), "0 or more"),
    (TransactionFence, "settings", {}, "FenceSettings"),
    (applied, "settings", {}, "AppliedSettings"),
    (applied, "session", "x", "sessionmaker"),
]
WRONG_ON_ASYNCIO = [
    ({Outbox: AsyncOutbox, TransactionFence: AsyncTransactionFence, applied: async_applied}[make], *rest)  # type: ignore[index]
    for make, *rest in WRONG
]


@pytest.mark.parametrize(("make", "field", "value", "remedy"), [*WRONG, *WRONG_ON_ASYNCIO])
def test_options_that_cannot_work_are_named(
    make: Callable[..., Any], field: str, value: object, remedy: str, url: str, async_url: str
) -> None:
    is_async = (make, field, value, remedy) in WRONG_ON_ASYNCIO
    with pytest.raises(ConfigurationError, match=f"{field} is .*{remedy}.*not ") as refused:
        make(async_url if is_async else url, **{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("make", [AsyncOutbox, AsyncTransactionFence, async_applied])
async def test_what_is_made_from_a_url_can_be_closed(make: Callable[..., Any], async_url: str) -> None:
    made = make(async_url)
    await made.create_tables()
    engine = made._database.engine
    before = engine.pool
    assert before.checkedin() == 1
    await made.close()
    assert before.checkedin() == 0
    users = make(engine)
    await users.create_tables()
    await users.close()
    assert engine.pool.checkedin() == 1, "the user's engine is the user's"
    await engine.dispose()


async def test_operators_wake_the_relay_on_asyncio(async_url: str) -> None:
    outbox = AsyncOutbox(async_url)
    await outbox.create_tables()
    woken = asyncio.Event()
    outbox._relay = SimpleNamespace(wake=woken.set)  # type: ignore[assignment]
    for act in (outbox.retry, outbox.skip):
        woken.clear()
        assert await act([1]) == 0
        assert woken.is_set()
    await outbox.close()


class Broken:
    """A local transaction whose rollback fails, as that of a lost connection does."""

    dialect = dialect_of("mysql")

    def begin(self) -> None:
        """It is begun."""

    def execute(self, sql: str, **values: Any) -> int:
        raise KeyError(sql)

    def is_doomed(self) -> bool:
        raise ZeroDivisionError

    def rollback(self) -> None:
        raise RuntimeError("the connection is lost")

    def close(self) -> None:
        """There is nothing to close."""


def test_a_failing_rollback_hides_no_error() -> None:
    message: Any = SimpleNamespace(message_id="1", topic="t", queue=0, offset=0, dedup_key="k")
    marks = AppliedMessages(lambda: sqlite3.connect(":memory:"), "accounts").marks
    local: Any = Broken()
    with pytest.raises(KeyError), applying(local, Application(marks, lambda each: each.dedup_key, [message])):
        pass
    begun = Application(marks, lambda each: each.dedup_key, [message])
    begun.begin = lambda _: begun.fresh.append(message)  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError), applying(local, begun):
        pass


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), False),
        (pymysql.err.OperationalError(1213, "Deadlock found"), False),
        (pymysql.err.OperationalError(2013, "Lost connection"), False),
        (pymysql.err.OperationalError(1142, "INSERT command denied"), True),
        (pymysql.err.ProgrammingError(1146, "Table doesn't exist"), True),
    ],
)
def test_only_a_table_that_cannot_be_written_asks_for_a_right(error: Exception, is_told: bool) -> None:
    class Local(Broken):
        def execute(self, sql: str, **values: Any) -> int:
            raise error

    def opened() -> Any:
        return OpenedOnce(Local())

    with pytest.raises(ConfigurationError if is_told else type(error)) as raised:
        SubmissionRows("halfmq.").identity(LocalDatabase(opened))
    assert ("GRANT INSERT" in str(raised.value)) is is_told
    assert (dialect_of("mysql").failure_of(error) is Failure.NO_TABLE) is is_told


class OpenedOnce:
    def __init__(self, local: Broken) -> None:
        self._local = local

    def __enter__(self) -> Broken:
        return self._local

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""


@pytest.fixture
def missing(url: str) -> Iterator[Outbox]:
    made = Outbox(url, same_server=True)
    yield made
    made.close()


def test_a_producer_begins_with_a_look_at_the_brokers_table(missing: Outbox) -> None:
    connection: Any = None
    with pytest.raises(ConfigurationError, match="GRANT INSERT"):
        missing.attach(connection)


async def test_a_producer_on_asyncio_too(async_url: str) -> None:
    connection: Any = None
    missing = AsyncOutbox(async_url, same_server=True)
    with pytest.raises(ConfigurationError, match="GRANT INSERT"):
        await missing.attach(connection)
    await missing.close()
