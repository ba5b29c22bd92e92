"""A broker dies, or stops for a time, while it releases submissions: what users' transactions wrote to its tables.

Another one goes on. Each committed submission is in the log once, those of a message group in their order, and the
offsets of each queue are dense.
"""

from __future__ import annotations

import random
import re
import signal
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from faults.client import Client
from faults.mysql_proxy import Then
from faults.operations import When
from faults.sites import Proxied, Site, killed_at_commit, rounds
from faults.tables import count, left_over, query
from producer_sdk import Message
from producer_sdk.outbox import Outbox
from support.brokers import BrokerProcess
from ways.outbox.running import until
from ways.shops import ORDER, make_shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from halfmq.v1 import message_pb2
    from support.databases import Kind
    from ways.shops import Shop

# The storage releases so many submissions in one database transaction.
CHUNK = 1000
SUBMISSIONS = CHUNK + 500
GROUPS = 3
QUEUES = 3
WRITERS = 2
PATIENCE = 120.0
# Only what releases submissions locks them; a broker that comes too late finds none that it could append.
LOCKS = "SELECT submission_id FROM submission"
TAKES_OFFSETS, APPENDS = r"UPDATE queue SET stored_bytes", r"INSERT INTO message \("

pytestmark = pytest.mark.timeout(600 + 60 * rounds(1))


@pytest.fixture
def shop(kind: Kind, tmp_path: Path) -> Iterator[Shop]:
    """The user's database, on the server of the broker's."""
    with make_shop(kind, tmp_path) as made:
        yield made


class Writer:
    """Business transactions with messages of a message group, and of none, which have no id of their own."""

    def __init__(self, shop: Shop, database: str, topic: str, group: str) -> None:
        self.group = group
        self._shop, self._topic = shop, topic
        tables = f"{database.rpartition('/')[2]}."
        self._outbox = Outbox(shop.engine, same_server=True, broker_tables=tables)
        self._outbox.create_tables()
        self._bare = sa.text(f"INSERT INTO {tables}submission (topic_name, body) VALUES (:topic, :body)")
        self._number = 0
        self._chance = random.Random(group)
        self.grouped: list[str] = []
        self.alone: list[str] = []
        """What is committed, in its order."""

    def transact(self, size: int, *, commit: bool = True) -> None:
        """A transaction with so many messages, half of them of the group."""
        texts = [f"{self.group}:{self._number + each:06}" for each in range(size)]
        self._number += size
        with Session(self._shop.engine) as session:
            session.execute(ORDER, {"content": texts[0]})
            for each in texts[::2]:
                self._outbox.put(session, Message(self._topic, each, message_group=self.group))
            for each in texts[1::2]:
                session.execute(self._bare, {"topic": self._topic, "body": each.encode()})
            if not commit:
                session.rollback()
                return
            session.commit()
        self.grouped += texts[::2]
        self.alone += texts[1::2]

    def transact_until(self, over: threading.Event) -> None:
        """Transactions, one after the other; some are rolled back."""
        while not over.wait(self._chance.uniform(0.0, 0.02)):
            self.transact(self._chance.randint(1, 6), commit=self._chance.random() < 0.9)


def writers_of(shop: Shop, database: str, topic: str, number: int) -> list[Writer]:
    return [Writer(shop, database, topic, f"g{each}") for each in range(number)]


def await_released(database: str) -> None:
    """Looks until the brokers have taken all that is committed; nothing tells when that is."""
    until(lambda: count(database, "submission") == 0, PATIENCE)


def judge(log: dict[int, list[message_pb2.LogMessage]], writers: Sequence[Writer]) -> None:
    """Each is there once, in the order of its group, and the offsets have no gaps."""
    for queue, entries in log.items():
        assert [each.offset for each in entries] == list(range(len(entries))), queue
    found = [each for entries in log.values() for each in entries]
    expected = Counter(text for writer in writers for text in (*writer.grouped, *writer.alone))
    assert Counter(each.body.decode() for each in found) == expected
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for each in found:
        if each.message_group:
            groups[each.message_group].append(each.body.decode())
    assert groups == {writer.group: writer.grouped for writer in writers}


def judge_all(client: Client, topic: str, database: str, writers: Sequence[Writer]) -> None:
    log = client.log(topic)
    judge(log, writers)
    assert [each.max_offset for each in client.offsets(topic)] == [len(entries) for entries in log.values()]
    assert count(database, "refused_submission") == 0
    assert left_over(database) == []


def test_another_broker_releases_what_the_dead_one_left(
    kind: Kind, fresh_database: Callable[[Kind], str], shop: Shop
) -> None:
    database = fresh_database(kind)
    with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
        topic = client.make_topic(QUEUES)
    writers = writers_of(shop, database, topic, GROUPS)
    size = 20
    for number in range(SUBMISSIONS // size):
        writers[number % GROUPS].transact(size)
    killed_at_commit(database, matching=LOCKS, when="before")
    assert (count(database, "message"), count(database, "submission")) == (0, SUBMISSIONS)
    killed_at_commit(database, matching=LOCKS, when="after")
    assert (count(database, "message"), count(database, "submission")) == (CHUNK, SUBMISSIONS - CHUNK)
    assert query(database, "SELECT SUM(next_offset) FROM queue") == [(CHUNK,)]
    with BrokerProcess(database) as successor, Client(successor.endpoint) as client:
        await_released(database)
        judge_all(client, topic, database, writers)
        assert successor.count("[error") == 0, successor.log


def is_release(statement: str, earlier: Sequence[str]) -> bool:
    """Whether this is the COMMIT that makes messages of submissions."""
    return statement.strip() == "COMMIT" and all(
        any(re.match(pattern, each) for each in earlier) for pattern in (LOCKS, APPENDS)
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_brokers_die_while_users_write(site: Site, shop: Shop, when: When) -> None:
    topic = site.client.make_topic(QUEUES)
    writers = writers_of(shop, site.database, topic, WRITERS)
    over = threading.Event()
    failed: list[BaseException] = []

    def write(writer: Writer) -> None:
        try:
            writer.transact_until(over)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(each,), daemon=True) for each in writers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(rounds(3)):
            with site.victim() as victim:
                victim.proxy.on(is_release, when=when, action=victim.broker.kill).wait(PATIENCE)
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert failed == []
    await_released(site.database)
    judge_all(site.client, topic, site.database, writers)
    assert min(len(each.grouped) for each in writers) > 10


@pytest.mark.parametrize("at", ["before its COMMIT", "after its COMMIT", "between two statements"])
def test_a_broker_that_is_frozen_goes_on_later(
    kind: Kind, fresh_database: Callable[[Kind], str], shop: Shop, at: str
) -> None:
    """Meanwhile another one releases what it has not, and what is written then."""
    database = fresh_database(kind)
    holds, thaw = threading.Event(), threading.Event()
    with Proxied(database) as frozen:

        def hold() -> None:
            frozen.broker.process.send_signal(signal.SIGSTOP)
            holds.set()
            thaw.wait()

        topic = frozen.client.make_topic(QUEUES)
        writers = writers_of(shop, database, topic, GROUPS)

        def write() -> None:
            for each in writers:
                each.transact(10)

        if at == "between two statements":
            frozen.proxy.on_statement(TAKES_OFFSETS, when="after", action=Then(hold))
        else:
            frozen.proxy.on(is_release, when="before" if at.startswith("before") else "after", action=Then(hold))
        try:
            write()
            assert holds.wait(PATIENCE)
            assert (count(database, "message") > 0) == (at == "after its COMMIT")
            write()
            with BrokerProcess(database) as healthy, Client(healthy.endpoint) as client:
                await_released(database)
                judge_all(client, topic, database, writers)
                frozen.broker.process.send_signal(signal.SIGCONT)
                thaw.set()
                write()
                await_released(database)
                judge_all(client, topic, database, writers)
                assert healthy.count("[error") == 0, healthy.log
        finally:
            frozen.broker.process.send_signal(signal.SIGCONT)
            thaw.set()
        # Nobody else does it now.
        write()
        await_released(database)
        judge_all(frozen.client, topic, database, writers)
        assert frozen.broker.count("[error") == 0, frozen.broker.log
