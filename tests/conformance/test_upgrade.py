"""A database of the first version, with everything in it, is upgraded and goes on where it was."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic import command

from broker.domain.group import ExhaustedPolicy, GroupMode
from broker.domain.lease import Receipt
from broker.domain.topic import DAY, TopicSettings
from broker.storage import migrations
from broker.storage.engine.connection import Database
from broker.storage.migrations import upgrading
from conformance.world import (
    HOUR,
    START,
    World,
    ack,
    commit,
    decided,
    log_of,
    ok,
    pull,
    sending,
    stored_bytes_are_exact,
)
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from broker.storage.engine.session import Session
    from support.databases import AnyKind

DECIDED, OPEN = b"\x01" * 16, b"\x02" * 16


def fill(session: Session) -> None:
    """Rows as a broker of the first version wrote them."""
    session.begin()
    session.insert(
        "topic",
        "topic_id, name, queue_count, retention, created_at",
        [(1, "orders", 3, HOUR, START), (2, "%DLQ%billing", 1, HOUR, START)],
    )
    session.insert(
        "queue",
        "queue_id, topic_id, queue_no, next_offset, min_offset",
        [(1, 1, 0, 5, 2), (2, 1, 1, 1, 0), (3, 1, 2, 0, 0), (4, 2, 0, 0, 0)],
    )
    session.insert("producer_group", "producer_group_id, name", [(1, "shop")])
    columns = (
        "queue_id, log_offset, transaction_id, position, body, size, tag, message_keys, message_group, properties,"
        " born_at, stored_at"
    )
    session.insert(
        "message",
        columns,
        [(1, n, DECIDED, n, b"x" * n, n, "tag", '["k"]', "g", '{"a":"b"}', START - 1, START) for n in range(2, 5)]
        + [(2, 0, DECIDED, 5, b"y" * 100, 100, None, None, None, None, START, START)],
    )
    session.insert(
        "op_record",
        "transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at, decided_at, released",
        [(DECIDED, 2, 1, 1, 6, 0, START, START, "[[1,0],[1,1],[1,2],[1,3],[1,4],[2,0]]")],
    )
    session.insert(
        "half_message",
        "transaction_id, position, producer_group_id, topic_id, queue_no, body, size, message_group, born_at,"
        " check_state, check_due_at, check_count",
        [(OPEN, 0, 1, 1, 0, b"open", 4, "g", START, 1, START + 5, 0)],
    )
    session.insert("consumer_group", "group_id, name, max_attempts, created_at", [(1, "billing", 3, START)])
    session.insert("group_progress", "group_id, queue_id, next_offset", [(1, 1, 4), (1, 2, 0), (1, 3, 0)])
    session.insert(
        "lease",
        "lease_id, group_id, queue_id, first_offset, message_count, owner, token, attempt, available_at",
        [(1, 1, 1, 2, 2, "somebody", 7, 1, START + HOUR)],
    )
    session.commit()


def upgrade_to(database: Database, version: str) -> None:
    """Brings a database to a version that is not the newest."""
    config = upgrading.config(database.names)
    with database.sqlalchemy_engine().connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
        connection.commit()


@pytest.fixture
async def old(kind: AnyKind, tmp_path: Path) -> AsyncIterator[World]:
    """A database of the first version."""
    url = f"sqlite:///{tmp_path / 'old.db'}" if kind == "sqlite" else create_database(server_url(kind))
    database = Database(url)
    upgrade_to(database, "0001")
    session = database.session()
    fill(session)
    database.release(session)
    world = World(kind, url)
    yield world
    await world.close()
    database.close()
    if kind != "sqlite":
        drop_database(url)


async def test_a_database_of_the_first_version_goes_on(old: World) -> None:
    database = Database(old.url)
    assert migrations.current(database) == "0001"
    migrations.migrate(database)
    assert migrations.current(database) == migrations.newest()
    database.close()
    store = old.broker()
    topic = await store.find_topic("orders")
    assert topic is not None
    assert topic.settings == TopicSettings(3, HOUR, 0, DAY, 1)
    assert (topic.group_queues, topic.queue_ids, topic.created_at) == (3, (1, 2, 3), START)
    stored_bytes_are_exact(old)
    assert [(m.offset, m.body, m.keys, m.message_group) for m in await log_of(store, topic)] == [
        (n, b"x" * n, ["k"], "g") for n in range(2, 5)
    ]
    assert [len(m.body) for m in await log_of(store, topic, 1)] == [100]
    group = await store.find_group("billing")
    assert group is not None
    assert (group.settings.max_attempts, group.settings.mode) == (3, GroupMode.CLUSTERING)
    assert group.settings.when_exhausted is ExhaustedPolicy.DEAD_LETTER
    # What was handed out before can be settled, and the rest is delivered.
    ok(await store.settle([ack(Receipt(1, 7, offset)) for offset in (2, 3)]))
    left = [message for each in await pull(store, group, topic) for message in each.messages]
    assert sorted((message.queue_no, message.offset) for message in left) == [(0, 4), (1, 0)]
    assert list((await decided(store, commit(OPEN))).released) == [(1, 5)]
    assert list((await decided(store, commit(DECIDED))).released) == [(1, n) for n in range(5)] + [(2, 0)]
    assert await store.send([sending(topic, "new", queue_no=2, keys=("k",))]) == [(3, 0)]
    old.clock.pass_time(HOUR)
    assert [await store.trim_queue(topic, queue_id) for queue_id in topic.queue_ids] == [4, 1, 1]
    stored_bytes_are_exact(old)


def contents(file: Path) -> list[str]:
    """Everything in an SQLite file, as statements."""
    with closing(sqlite3.connect(file)) as connection:
        return list(connection.iterdump())


def test_an_upgrade_of_an_embedded_database_is_done_whole_or_not_at_all(tmp_path: Path) -> None:
    """What a process that is killed leaves are its files as they are: they are copied at each statement."""
    file = tmp_path / "old.db"
    with closing(Database(f"sqlite:///{file}")) as database:
        upgrade_to(database, "0001")
        session = database.session()
        fill(session)
        database.release(session)
        before = contents(file)
        copies: list[Path] = []

        def copy(*_: object) -> None:
            copies.append(tmp_path / f"{len(copies)}.db")
            for end in ("", "-wal"):
                shutil.copyfile(f"{file}{end}", f"{copies[-1]}{end}")

        sa.event.listen(sa.Engine, "after_cursor_execute", copy)
        try:
            migrations.migrate(database)
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", copy)
    after = contents(file)
    assert len(copies) > 60
    for made in copies:
        assert contents(made) == before, made
    for made in copies[:: len(copies) // 8]:
        with closing(Database(f"sqlite:///{made}")) as again:
            migrations.migrate(again)
        assert contents(made) == after, made
