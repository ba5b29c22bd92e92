"""What else there is in an installation: topics with queues, and consumer groups that read many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.domain.topic import Compression
from broker.services.ids import new_id
from broker.storage.tables import rows
from halfmq_cli.bench.bare_storage import FOR_EVER
from halfmq_cli.bench.load import QUEUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfmq_cli.bench.bare_storage import BareStorage

QUEUES_READ = 1_000
"""In which a consumer group has progress, at most."""
BEHIND = 10
"""One of so many queues of a group has a message that it has not read."""
CHUNK = 5_000
"""Rows of one INSERT."""


@dataclass(frozen=True, slots=True)
class Installation:
    """How much there is.

    Attributes:
        topics: with four queues each, and a message in each queue.
        progress: rows of consumer groups' progress in these queues.
    """

    topics: int
    progress: int

    def fill(self, bare: BareStorage) -> None:
        """Fills the tables; nothing of it expires."""
        if not self.topics:
            return
        now = bare.store.clock.now()
        names = [f"topic-{number:06}" for number in range(self.topics)]
        _insert(bare, "topic", "name, queue_count, retention, created_at", [(n, QUEUES, FOR_EVER, now) for n in names])
        body = bare.message().body
        content = rows.content(bare.message(), Compression.NONE)
        made = _fetch(bare, "SELECT topic_id FROM topic WHERE name LIKE 'topic-%' ORDER BY topic_id")
        queues = [(topic_id, number, 1, 0, len(body)) for (topic_id,) in made for number in range(QUEUES)]
        _insert(bare, "queue", "topic_id, queue_no, next_offset, min_offset, stored_bytes", queues)
        places = [
            row[0]
            for row in _fetch(
                bare,
                "SELECT q.queue_id FROM queue q JOIN topic t ON t.topic_id = q.topic_id WHERE t.name LIKE 'topic-%'"
                " ORDER BY q.queue_id",
            )
        ]
        _insert(bare, "message", rows.MESSAGE_COLUMNS, [(each, 0, new_id(), 0, *content, now, now) for each in places])
        self._add_groups(bare, places, now)

    def _add_groups(self, bare: BareStorage, places: Sequence[int], now: int) -> None:
        read = min(QUEUES_READ, len(places))
        count = -(-self.progress // read)
        names = [(f"group-{number:06}", 16, now) for number in range(count)]
        _insert(bare, "consumer_group", "name, max_attempts, created_at", names)
        groups = _fetch(bare, "SELECT group_id FROM consumer_group WHERE name LIKE 'group-%' ORDER BY group_id")
        progress = [
            (group_id, places[(turn * read + number) % len(places)], 0 if number % BEHIND == 0 else 1)
            for turn, (group_id,) in enumerate(groups)
            for number in range(min(read, self.progress - turn * read))
        ]
        _insert(bare, "group_progress", "group_id, queue_id, next_offset", sorted(progress))


def _fetch(bare: BareStorage, query: str) -> list[tuple[Any, ...]]:
    session = bare.database.session()
    found = session.fetch(query)
    session.rollback()
    bare.database.release(session)
    return list(found)


def _insert(bare: BareStorage, table: str, columns: str, values: Sequence[tuple[Any, ...]]) -> None:
    session = bare.database.session()
    for first in range(0, len(values), CHUNK):
        session.begin()
        session.insert(table, columns, values[first : first + CHUNK])
        session.commit()
    bare.database.release(session)
