"""How long a topic stands still while it moves to another cell, by how much has to be moved at the end.

    python benchmarks/cells/moving.py mysql://user:password@host/one mysql://user:password@host/two --halves 1000 10000

Both databases have to be there, and empty; their tables are made, and filled, and deleted at the end. What moves is a
topic with messages, half messages and leases. The table that this prints is in docs/moving-between-cells.md.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

from broker.domain.cell import Name, Placed
from broker.domain.topic import TopicSettings
from broker.storage.catalog import cells, topics
from broker.storage.engine.connection import HOLD_LIMIT, Database
from broker.storage.migrations import migrate
from broker.storage.moving.databases import Databases
from broker.storage.moving.mover import Mover
from broker.storage.moving.planning import plan
from broker.storage.tables.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

AT_ONCE = 5000
BODY = b"x" * 300
HOUR = 3_600_000_000


def fill(session: Session, number: int, halves: int, messages: int) -> str:
    """A topic with a group that reads it: half of `halves` are half messages, and half are leases."""
    now = session.dialect.now(session)
    topic = topics.create_topic(session, f"topic-{number}", TopicSettings(4, HOUR), now)
    producers = topics.producer_group_id(session, "shop")
    group = "name, max_attempts, created_at"
    session.insert("consumer_group", group, [(f"group-{number}", 16, now)])
    group_id = session.fetch("SELECT group_id FROM consumer_group WHERE name = ?", (f"group-{number}",))[0][0]
    progress = [(group_id, queue_id, 0) for queue_id in topic.queue_ids]
    session.insert("group_progress", "group_id, queue_id, next_offset", progress)
    for start in range(0, halves // 2, AT_ONCE):
        count = min(AT_ONCE, halves // 2 - start)
        session.insert(
            "half_message",
            "transaction_id, position, producer_group_id, topic_id, body, size, born_at, check_state, check_due_at,"
            " check_count",
            [
                (os.urandom(16), 0, producers, topic.topic_id, BODY, len(BODY), now, 1, now + HOUR, 0)
                for _ in range(count)
            ],
        )
        session.insert(
            "lease",
            "group_id, queue_id, first_offset, message_count, token, attempt, available_at",
            [(group_id, topic.queue_ids[0], start + n, 1, n, 1, now + HOUR) for n in range(count)],
        )
    for start in range(0, messages, AT_ONCE):
        count = min(AT_ONCE, messages - start)
        session.insert(
            "message",
            "queue_id, log_offset, transaction_id, position, body, size, born_at, stored_at",
            [(topic.queue_ids[0], start + n, os.urandom(16), 0, BODY, len(BODY), now, now) for n in range(count)],
        )
    session.run(
        "UPDATE queue SET next_offset = ?, stored_bytes = ? WHERE queue_id = ?",
        (messages, messages * len(BODY), topic.queue_ids[0]),
    )
    session.commit()
    return topic.name


def prepared(urls: Sequence[str]) -> None:
    """Makes the databases two cells."""
    with closing(Database(urls[0])) as home, closing(Database(urls[1])) as other:
        migrate(home)
        migrate(other)
        first, second = home.session(), other.session()
        (cell,) = cells.number_cells(first, ["other"])
        first.commit()
        cells.adopt(second, cell, cells.greatest_numbers(first))
        second.commit()


def emptied(urls: Sequence[str]) -> None:
    """Deletes the tables."""
    for url in urls:
        with closing(Database(url)) as database:
            session = database.session()
            for table in (*metadata.tables, database.names.versions):
                session.run(f"DROP TABLE {table}")


def main() -> None:
    """Prints a row for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs=2)
    parser.add_argument("--halves", type=int, nargs="+", default=[1000, 10_000, 100_000], help="rows at the end")
    parser.add_argument("--messages", type=int, default=100_000, help="in the log")
    given = parser.parse_args()
    prepared(given.urls)
    try:
        print("| rows | copied before, s | stands still, s |\n|---|---|---|")
        for number, halves in enumerate(given.halves):
            databases = Databases(lambda cell: Database(given.urls[cell], hold_limit=HOLD_LIMIT, cell=cell))
            with closing(databases):
                name = databases.write(
                    0, lambda session, number=number, halves=halves: fill(session, number, halves, given.messages)
                )
                names = [Name(Placed.TOPIC, name), Name(Placed.GROUP, name.replace("topic", "group"))]
                mover = Mover(databases, tell=lambda text: print(f"  {text}", flush=True))
                move = mover.begin(plan(databases, names, 1), "os:bench")
                began = time.monotonic()
                ended = mover.carry_on(move)
                still = ended.stood_still or 0.0
                print(f"| {halves:,} | {time.monotonic() - began - still:.1f} | {still:.2f} |", flush=True)
    finally:
        emptied(given.urls)


if __name__ == "__main__":
    main()
