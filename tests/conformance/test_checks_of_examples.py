"""The checks that the examples and the demo show: right however check and local transaction interleave.

ROLLBACK is a promise that the local transaction will never commit, and COMMIT that it has. Each listing is tried on all
three databases, with each order of the two that there is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from client_core.ids import new_id
from client_core.local_database import join
from halfmq_cli.demo.tables import ORDERS, Book, connection_of
from producer_sdk import HalfMessages, LocalTransactionState, Message, TransactionListener
from producer_sdk.listener import ListenerCaller
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import AnyKind

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
EXAMPLES = Path(__file__).parents[2] / "examples"


class Service(Protocol):
    """A listing, and its local transaction in steps.

    Attributes:
        half: the half messages; their id tells when the transaction began.
    """

    listener: TransactionListener
    half: HalfMessages

    def local(self) -> contextlib.AbstractContextManager[None]:
        """Does the local change; the end of the block commits it, an exception rolls it back."""
        ...

    def orders(self) -> int:
        """How many orders there are."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def begun() -> HalfMessages:
    """A transaction that begins now."""
    return HalfMessages(new_id(), (Message("orders", '{"item": "lamp"}'),))


class OwnListenerExample:
    """examples/ways/own_listener.py: its statements run as they stand."""

    def __init__(self, url: str) -> None:
        self.half = begun()
        self.listener = example("ways/own_listener").Orders(url)
        self._engine = self.listener.shop

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        with self._engine.begin() as database:
            held = _Held(self._engine, database)
            self.listener.shop = held
            try:
                self.listener.execute_local_transaction(self.half, "lamp")
            finally:
                self.listener.shop = self._engine
            yield

    def orders(self) -> int:
        with self._engine.begin() as database:
            return int(database.exec_driver_sql("SELECT COUNT(*) FROM orders").scalar_one())

    def close(self) -> None:
        self._engine.dispose()
        self.listener.checking.dispose()


class _Held:
    """An engine whose transaction is begun and ended by the test."""

    def __init__(self, engine: Any, connection: Any) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        yield self._connection


class Demo:
    """The services of `halfmq demo`."""

    def __init__(self, url: str) -> None:
        self.half = begun()
        self._book = Book(url, "demo_", ORDERS)
        self._book.create()
        self.listener = self._book.fence

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        with self._book.session() as session:
            local = join(connection_of(session))
            local.begin()
            try:
                self._book.fence.put(local, self.half.transaction_id)
                self._book.write(session, [(1, "Ada", "lamp", 300)])
                yield
                local.commit()
            except BaseException:
                local.rollback()
                raise

    def orders(self) -> int:
        return self._book.count()

    def close(self) -> None:
        self._book.close()


@pytest.fixture(params=[OwnListenerExample, Demo])
def service(request: pytest.FixtureRequest, kind: AnyKind, tmp_path: Path) -> Iterator[Service]:
    make: Callable[[str], Service] = request.param
    url = f"sqlite:///{tmp_path / 'shop.db'}" if kind == "sqlite" else create_database(server_url(kind))
    made = make(url)
    yield made
    made.close()
    if kind != "sqlite":
        drop_database(url)


async def checked(service: Service) -> LocalTransactionState:
    """What the SDK makes of the listener's answer; an exception counts as UNKNOWN."""
    caller = ListenerCaller(service.listener, 1)
    try:
        return (await caller.check(service.half))[0]
    finally:
        caller.close()


class Undone(Exception):
    """Rolls a local transaction back."""


async def test_a_check_before_the_local_transaction_began(service: Service) -> None:
    assert await checked(service) is ROLLBACK
    with pytest.raises(Exception, match=r"(?i)unique|duplicate|comes too late"), service.local():
        pass
    assert service.orders() == 0
    assert await checked(service) is ROLLBACK


async def test_a_check_after_its_commit(service: Service) -> None:
    with service.local():
        pass
    assert [await checked(service), await checked(service), service.orders()] == [COMMIT, COMMIT, 1]


async def test_a_check_after_it_was_rolled_back(service: Service) -> None:
    with contextlib.suppress(Undone), service.local():
        raise Undone
    assert (await checked(service), service.orders()) == (ROLLBACK, 0)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate|comes too late"), service.local():
        pass
    assert service.orders() == 0


async def test_a_check_while_it_runs_and_holds_its_locks(service: Service) -> None:
    """However long it runs, also beyond the check's patience: it may still commit, so ROLLBACK would be a guess."""
    with service.local():
        assert await checked(service) is UNKNOWN
    assert (await checked(service), service.orders()) == (COMMIT, 1)


@pytest.mark.parametrize("undone", [False, True])
async def test_a_check_that_waits_while_it_ends(service: Service, undone: bool) -> None:
    """The check waits for the key when the local transaction commits or rolls back; both agree on what happened."""
    started, ended = threading.Event(), threading.Event()

    def run() -> None:
        with contextlib.suppress(Undone), service.local():
            started.set()
            # Some time for the check to come to its wait; whether it does changes nothing of what must hold.
            ended.wait(0.5)
            if undone:
                raise Undone

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        while not started.wait(0.05) and not running.done():
            """It has not come to its local transaction yet."""
        answer = await checked(service)
        running.result()
    final = await checked(service)
    assert answer in {UNKNOWN, final}
    assert (final, service.orders()) == ((ROLLBACK, 0) if undone else (COMMIT, 1))
