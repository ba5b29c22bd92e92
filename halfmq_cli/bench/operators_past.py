"""What a console has to show beside messages and transactions: names, dead letters, clients, audit records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.domain.dead_letter import Origin, dead_letter_topic
from broker.domain.message import Message
from broker.domain.topic import Compression
from broker.ports.audit import AuditOutcome, AuditRecord
from broker.ports.connections import BrokerStatus, ClientKind, ConnectedClient
from broker.services.ids import new_id
from broker.storage.tables import rows
from halfmq_cli.bench.bare_storage import FOR_EVER
from halfmq_cli.bench.load import GROUP, QUEUES, TOPIC

if TYPE_CHECKING:
    from halfmq_cli.bench.bare_storage import BareStorage

QUEUES_READ = 8
"""In which a consumer group has progress."""
BROKERS = 5
"""That report clients."""
GROUPS_WITH_LETTERS = 10
"""One of so many groups has dead letters, beside the one that has most."""
LETTERS = 3
"""Dead letters of each of these."""
DENIED = 10
"""One of so many records is of a refusal."""
CHUNK = 5_000
"""Rows of one INSERT."""
A_DAY = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class OperatorsPast:
    """How much there is.

    Attributes:
        topics: with four queues each.
        groups: of consumers, each with its topic of dead letters.
        letters: dead letters of one more group.
        clients: connected to other brokers.
        records: of who did what.
    """

    topics: int
    groups: int
    letters: int
    clients: int
    records: int

    async def fill(self, bare: BareStorage) -> None:
        """Fills the tables; the clients' brokers count as alive for a day."""
        now = bare.store.clock.now()
        self._add_names(bare, now)
        self._add_letters(bare, now)
        for number in range(BROKERS):
            clients = [_client(each, now) for each in range(number, self.clients, BROKERS)]
            kinds = [each.kind for each in clients]
            status = BrokerStatus(
                f"broker-{number}",
                f"server-{number}",
                4711,
                f"10.0.0.{number}:8085",
                "1.0",
                now,
                producers=kinds.count(ClientKind.PRODUCER),
                consumers=kinds.count(ClientKind.CONSUMER),
            )
            await bare.store.report_broker(status, clients)
        bare.change("UPDATE broker SET seen_at = ?", (now + A_DAY,))
        for first in range(0, self.records, CHUNK):
            last = min(first + CHUNK, self.records)
            await bare.store.append_audit([_record(number) for number in range(first, last)])

    def _add_names(self, bare: BareStorage, now: int) -> None:
        session = bare.database.session()
        names = [(f"topic-{number:05}", QUEUES, FOR_EVER, now) for number in range(self.topics)]
        names += [(dead_letter_topic(f"group-{number:05}"), 1, FOR_EVER, now) for number in range(self.groups)]
        _insert(bare, "topic", "name, queue_count, retention, created_at", names)
        made = session.fetch(
            "SELECT topic_id, queue_count FROM topic WHERE name LIKE 'topic-%' OR name LIKE '%group-%'"
        )
        queues = [(topic_id, number, 0, 0) for topic_id, count in made for number in range(count)]
        _insert(bare, "queue", "topic_id, queue_no, next_offset, min_offset", queues)
        named = [(f"group-{number:05}", 16, now) for number in range(self.groups)]
        _insert(bare, "consumer_group", "name, max_attempts, created_at", named)
        readers = [row[0] for row in session.fetch("SELECT group_id FROM consumer_group WHERE name LIKE 'group-%'")]
        read = [
            row[0]
            for row in session.fetch(
                "SELECT q.queue_id FROM queue q JOIN topic t ON t.topic_id = q.topic_id WHERE t.name LIKE 'topic-%'"
                " ORDER BY q.queue_id LIMIT 4096"
            )
        ]
        progress = [
            (group_id, read[(place * QUEUES_READ + number) % len(read)], 0)
            for place, group_id in enumerate(readers)
            for number in range(QUEUES_READ)
        ]
        bare.database.release(session)
        _insert(bare, "group_progress", "group_id, queue_id, next_offset", progress)

    def _add_letters(self, bare: BareStorage, now: int) -> None:
        wanted = {dead_letter_topic(GROUP): self.letters}
        wanted |= {
            dead_letter_topic(f"group-{number:05}"): LETTERS for number in range(0, self.groups, GROUPS_WITH_LETTERS)
        }
        session = bare.database.session()
        found = session.fetch_in(
            "SELECT t.name, q.queue_id FROM topic t JOIN queue q ON q.topic_id = t.topic_id WHERE t.name", list(wanted)
        )
        bare.database.release(session)
        body = bare.message().body
        letters = []
        for topic, queue_id in found:
            for offset in range(wanted[topic]):
                origin = Origin(TOPIC, offset % QUEUES, offset // QUEUES, 16, "the address is not known")
                content = rows.content(Message(topic, body, properties=origin.added_to({})), Compression.NONE)
                letters.append((queue_id, offset, new_id(), 0, *content, now, now))
        _insert(bare, "message", rows.MESSAGE_COLUMNS, letters)
        for topic, queue_id in found:
            count = wanted[topic]
            bare.change(
                "UPDATE queue SET next_offset = ?, stored_bytes = ? WHERE queue_id = ?",
                (count, count * len(body), queue_id),
            )


def _client(number: int, now: int) -> ConnectedClient:
    """Half of them are producers, of 20 groups; the others consumers, of 100."""
    address = f"10.1.{number % 200}.{number % 250}:{40_000 + number % 20_000}"
    if number // BROKERS % 2:
        groups, topics = (f"service-{number % 20:02}",), ()
        return ConnectedClient(ClientKind.PRODUCER, f"client-{number:05}", address, "sdk 1.0", "", groups, topics, now)
    return ConnectedClient(
        ClientKind.CONSUMER,
        f"client-{number:05}",
        address,
        "sdk 1.0",
        "",
        (f"group-{number % 100:05}",),
        (TOPIC,),
        now,
        credits=100,
        delivered=number,
    )


def _record(number: int) -> AuditRecord:
    denied = number % DENIED == 0
    return AuditRecord(
        f"user-{number % 50:02}",
        f"10.2.0.{number % 250}:5000",
        "AdminService/PauseGroup" if denied else "AdminService/UpdateTopic",
        "OPERATE" if denied else "UPDATE",
        f"group group-{number % 1000:05}" if denied else f"topic topic-{number % 10_000:05}",
        AuditOutcome.DENIED if denied else AuditOutcome.ALLOWED,
        detail='{"reason": "the press is being repaired"}',
    )


def _insert(bare: BareStorage, table: str, columns: str, values: list[tuple[Any, ...]]) -> None:
    session = bare.database.session()
    for first in range(0, len(values), CHUNK):
        session.begin()
        session.insert(table, columns, values[first : first + CHUNK])
        session.commit()
    bare.database.release(session)
