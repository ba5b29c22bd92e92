"""A database with brokers' stores on it, and short ways to say what the tests do with them."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.domain.check_policy import SECOND, CheckPolicy
from broker.domain.ids import uuid7
from broker.domain.lease import Receipt
from broker.domain.message import LogMessage, Message
from broker.domain.transaction import VerdictSource
from broker.errors import BrokerError
from broker.ports.delivery import AckOutcome, AckWork, ClaimWork, Delivered, NackWork
from broker.ports.log import SendWork
from broker.ports.transactions import Half, PrepareWork, TransactionOutcome, VerdictWork
from broker.storage.adapters.store import Store
from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from broker.storage.tables.naming import TableNames
from support.databases import connect, create_database, delete_files, server_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.engine.group_commit import LaneConfig
    from broker.storage.engine.session import Session
    from support.databases import AnyKind


START = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND
LEASE = 30 * SECOND
POLICY = CheckPolicy(first_check=6 * SECOND, interval=30 * SECOND, max_checks=3)

_numbers = itertools.count(1)


class FakeClock:
    """A clock that moves only when it is told to."""

    def __init__(self, time: int = START) -> None:
        self.time = time
        self.synchronised = 0

    def now(self) -> int:
        return self.time

    def synchronise(self, session: Session) -> None:
        session.fetch("SELECT 1")
        self.synchronised += 1

    def pass_time(self, microseconds: int) -> None:
        self.time += microseconds


def new_id() -> bytes:
    """A transaction id; later ones sort behind earlier ones."""
    return uuid7(START // 1000 + next(_numbers), os.urandom(10))


def text(body: str = "hello", topic: str = "orders", **rest: object) -> Message:
    return Message(topic, body.encode(), **rest)  # type: ignore[arg-type]


def half(topic: Topic, body: str = "hello", queue_no: int | None = None, **rest: object) -> Half:
    return Half(topic.topic_id, queue_no, text(body, topic.name, **rest))


def commit(transaction_id: bytes, source: VerdictSource = VerdictSource.PRODUCER, **rest: Any) -> VerdictWork:
    return VerdictWork(transaction_id, True, source, **rest)


def rollback(transaction_id: bytes, source: VerdictSource = VerdictSource.PRODUCER, **rest: Any) -> VerdictWork:
    return VerdictWork(transaction_id, False, source, **rest)


def sending(
    topic: Topic,
    body: str = "hello",
    message_id: bytes | None = None,
    queue_no: int | None = 0,
    **rest: object,
) -> SendWork:
    return SendWork(message_id or new_id(), topic.topic_id, queue_no, text(body, topic.name, **rest))


def receipts(delivered: Iterable[Delivered]) -> list[Receipt]:
    return [Receipt(each.lease_id, each.token, message.offset) for each in delivered for message in each.messages]


def bodies(delivered: Iterable[Delivered]) -> list[str]:
    return [message.body.decode() for each in delivered for message in each.messages]


def ack(receipt: Receipt) -> AckWork:
    return AckWork(receipt.lease_id, receipt.token, [receipt.offset])


def acks(delivered: Iterable[Delivered]) -> list[AckWork]:
    return [AckWork(each.lease_id, each.token, [message.offset for message in each.messages]) for each in delivered]


def nacks(delivered: Iterable[Delivered], **how: object) -> list[NackWork]:
    return [NackWork(receipt, **how) for receipt in receipts(delivered)]  # type: ignore[arg-type]


def refusal(outcome: object) -> BrokerError | None:
    """Why something was refused; of several acks the first refusal."""
    if isinstance(outcome, AckOutcome):
        return next(iter(outcome.refused.values()), None)
    return outcome if isinstance(outcome, BrokerError) else None


def ok(outcomes: Sequence[object]) -> None:
    """Fails with the first refusal among outcomes."""
    for outcome in outcomes:
        if refused := refusal(outcome):
            raise refused


def of(kind: type[BrokerError], outcome: object) -> BrokerError:
    """The outcome, which must be this refusal."""
    refused = refusal(outcome)
    assert isinstance(refused, kind), outcome
    return refused


PREFIXES: dict[str, str] = {"mariadb": "hq_"}
"""What names of tables begin with, by the kind of database: so every statement is tried with a prefix and without."""


def wiped(url: str, names: Sequence[str]) -> None:
    """Empties tables of a server's database."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"(SELECT '{name}' FROM {name} LIMIT 1)" for name in names))
        for (name,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {name}")
        connection.commit()


class Databases:
    """Migrated databases, one for each kind and process of tests, made when first wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._urls: dict[str, str] = {}
        self._copies = itertools.count()

    def empty(self, kind: AnyKind) -> str:
        """The URL of a database with empty tables."""
        if kind not in self._urls:
            url = f"sqlite:///{self._folder / 'template.db'}" if kind == "sqlite" else create_database(server_url(kind))
            self._urls[kind] = url
            database = Database(url, table_prefix=PREFIXES.get(kind, ""))
            migrate(database)
            database.close()
        elif kind != "sqlite":
            wiped(self._urls[kind], TableNames(PREFIXES.get(kind, "")).all())
        if kind != "sqlite":
            return self._urls[kind]
        copy = self._folder / f"copy-{next(self._copies)}.db"
        shutil.copy(self._folder / "template.db", copy)
        return f"sqlite:///{copy}"

    @property
    def on_servers(self) -> list[str]:
        return [url for kind, url in self._urls.items() if kind != "sqlite"]


@dataclass
class World:
    """One database, a clock that all brokers on it share, and the brokers."""

    kind: AnyKind
    url: str
    table_prefix: str = ""
    clock: FakeClock = field(default_factory=FakeClock)
    _open: list[tuple[Store, Database]] = field(default_factory=list)
    _sessions: list[tuple[Session, Database]] = field(default_factory=list)

    def broker(
        self,
        name: str = "a",
        *,
        lanes: LaneConfig | None = None,
        clock: object = None,
        policy: CheckPolicy = POLICY,
        keep_history: bool = True,
    ) -> Store:
        """Another broker's store, with connections of its own."""
        database = self.database()
        store = Store(
            database,
            broker_id=name,
            policy=policy,
            lanes=lanes,
            clock=clock or self.clock,  # type: ignore[arg-type]
            keep_history=keep_history,
        )
        self._open.append((store, database))
        return store

    def database(self, **settings: Any) -> Database:
        """A pool of connections; the test closes it."""
        return Database(self.url, table_prefix=self.table_prefix, **settings)

    def forget(self, store: Store) -> None:
        """The test closed this store itself."""
        self._open = [(each, database) for each, database in self._open if each is not store]

    def session(self) -> Session:
        """A bare session on the database; the test begins and ends its transactions."""
        database = self.database()
        session = database.session()
        self._sessions.append((session, database))
        return session

    def count(self, table: str, where: str = "1 = 1") -> int:
        """Rows of a table."""
        database = self.database()
        session = database.session()
        try:
            session.begin(write=False)
            (number,) = session.fetch(f"SELECT COUNT(*) FROM {table} WHERE {where}")[0]
            session.rollback()
        finally:
            # Tests count in loops.
            database.release(session)
            database.close()
        return int(number)

    async def close(self) -> None:
        for session, database in self._sessions:
            session.rollback()
            database.release(session)
            database.close()
        for store, database in self._open:
            await store.close()
            database.close()
        if self.kind == "sqlite":
            delete_files(self.url)


async def prepared(store: Store, *topics: Topic, bodies: Sequence[str] = ("hello",), **rest: int) -> bytes:
    """A prepared transaction with these bodies on each topic."""
    transaction_id = new_id()
    group = await store.producer_group_id("shop")
    halves = [half(topic, body) for topic in topics for body in bodies]
    ok(await store.prepare([PrepareWork(transaction_id, group, halves, **rest)]))
    return transaction_id


async def decided(store: Store, work: VerdictWork) -> TransactionOutcome:
    """The outcome of one verdict, which must be accepted."""
    outcome = (await store.decide([work]))[0]
    assert isinstance(outcome, TransactionOutcome), outcome
    return outcome


async def bury(store: Store, group: ConsumerGroup, topic: Topic, *names: str, **rest: object) -> None:
    """Has messages become dead letters."""
    work = [SendWork(new_id(), topic.topic_id, 0, text(name, topic.name, tag=name[0], **rest)) for name in names]
    ok(await store.send(work))
    buried = 0
    while buried < len(names):
        held = await pull(store, group, topic)
        ok(await store.settle(nacks(held, reason=f"no {names[0]}")))
        buried += len(bodies(held))


async def pull(
    store: Store,
    group: ConsumerGroup,
    *topics: Topic,
    limit: int = 100,
    max_bytes: int = 1 << 20,
    owner: str = "consumer",
    lease_time: int = LEASE,
) -> list[Delivered]:
    """What a consumer gets."""
    outcome = (await store.claim([ClaimWork(group, topics, owner, limit, max_bytes, lease_time)]))[0]
    assert not isinstance(outcome, BrokerError), outcome
    return outcome.parts


async def log_of(store: Store, topic: Topic, queue_no: int = 0) -> list[LogMessage]:
    """All messages of a queue that are kept."""
    return (await store.read_queue(topic, queue_no, 0, 100_000, 1 << 30)).messages


async def everywhere(store: Store, topic: Topic) -> list[LogMessage]:
    """All messages of a topic that are kept."""
    return [message for number in range(topic.queue_count) for message in await log_of(store, topic, number)]


async def swept(store: Store) -> None:
    """Removes all that deleted topics left."""
    for topic_id in await store.deleted_topics(0, 100):
        while await store.sweep_deleted_topic(topic_id):
            pass


def vanished(world: World, topic: Topic) -> None:
    """Deletes a topic as brokers did that let half messages and scheduled ones into deleted topics."""
    session = world.session()
    session.begin()
    session.run("UPDATE queue SET deleted_at = 1 WHERE topic_id = ?", (topic.topic_id,))
    session.run("UPDATE topic SET deleted_at = 1, name = ? WHERE topic_id = ?", (f"~{topic.topic_id}", topic.topic_id))
    session.commit()


def stored_bytes_are_exact(world: World) -> None:
    """The bytes that every queue claims to hold are those of its messages."""
    session = world.session()
    session.begin(write=False)
    found = session.fetch(
        "SELECT q.queue_id, q.stored_bytes, COALESCE((SELECT SUM(m.size) FROM message m WHERE m.queue_id = q.queue_id),"
        " 0) FROM queue q"
    )
    session.rollback()
    assert [row for row in found if row[1] != row[2]] == []


class InThread:
    """A function that runs in a thread of its own, so that a test can see it wait for a lock."""

    def __init__(self, work: object) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()  # type: ignore[operator]
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "still running"
        if self.error is not None:
            raise self.error
