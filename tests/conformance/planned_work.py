"""What is measured in test_plans.py: the work of brokers, on a database with a long past."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.domain.check_policy import CheckPolicy
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.lease import Receipt
from broker.domain.message import Message
from broker.domain.transaction import VerdictSource
from broker.ports.delivery import ClaimWork, ExtendWork, NackWork
from broker.ports.log import RecallWork, SendWork
from broker.ports.queries import MessageSearch
from broker.ports.transactions import Half, PrepareWork, VerdictWork
from broker.storage.catalog.directory import Directory
from broker.storage.delivery import claims, receipts
from broker.storage.delivery.group_views import GroupMemory
from broker.storage.engine.session import StartOver
from broker.storage.log import log, message_queries, reading, recall, schedule
from broker.storage.retention import topic_deletion
from broker.storage.retention import trimming as retention
from broker.storage.transactions import checks, halves, verdicts
from conformance import bulk
from conformance.bulk import (
    BACKLOG,
    DUE,
    DUE_LEASES,
    DUE_OF_GROUP,
    GROUP,
    PARK_OF_GROUP,
    PENDING,
    TOPIC,
    WITH_KEY,
)
from conformance.world import START, ack

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.session import Session


POLICY = CheckPolicy()
EVERY = compile_filter(FilterKind.SQL, "halfmq.tag IS NULL OR halfmq.tag IS NOT NULL", "filter.sql")


def directory() -> Directory:
    return Directory()


def ids(count: int) -> list[bytes]:
    return [bulk.pending_id(number * (PENDING // count)) for number in range(count)]


def new_ids(count: int) -> list[bytes]:
    return [bytes.fromhex(f"0199{number:012x}{'0' * 16}") for number in range(count)]


def sweep(session: Session) -> Any:
    return halves.sweep_decided(session, b"", 1000)


def claim_checks(session: Session) -> Any:
    return checks.claim_due(session, [1, 2], START, POLICY, 100, directory(), "b")


def park(session: Session) -> Any:
    return checks.park_exhausted(session, START, 100)


def pull(limit: int) -> Callable[[Session], Any]:
    def work(session: Session) -> Any:
        wish = ClaimWork(GROUP, [TOPIC], "me", limit, 1 << 30, 1000)
        (claimed,) = claims.claim(session, [wish], START - 100, directory(), GroupMemory(), 0)
        return [message for each in claimed.parts for message in each.messages]  # type: ignore[union-attr]

    return work


def take_over(session: Session) -> Any:
    wish = ClaimWork(GROUP, [TOPIC], "me", DUE_LEASES, 1 << 30, 1000)
    (claimed,) = claims.claim(session, [wish], START, directory(), GroupMemory(), 0)
    return [message for each in claimed.parts for message in each.messages]  # type: ignore[union-attr]


def prepare(session: Session) -> Any:
    work = [PrepareWork(i, 1, [Half(1, None, Message("orders", b"x"))]) for i in new_ids(100)]
    return halves.prepare(session, work, START, POLICY, directory())


def prepare_keyed(session: Session) -> Any:
    work = [
        PrepareWork(i, 1, [Half(1, None, Message("orders", b"x", dedup_key=f"new{i.hex()}"))]) for i in new_ids(100)
    ]
    return halves.prepare(session, work, START, POLICY, directory())


def prepare_again(session: Session) -> Any:
    body = Message("orders", b"y" * 200)
    work = [PrepareWork(i, 1, [Half(1, None, body)]) for i in ids(50)]
    try:
        return halves.prepare(session, work, START, POLICY, directory())
    except StartOver as over:
        session.rollback()
        session.begin()
        assert over.again is not None
        return over.again(session)


def decide(count: int, commit: bool) -> Callable[[Session], Any]:
    def work(session: Session) -> Any:
        work = [VerdictWork(i, commit, VerdictSource.OPERATOR) for i in ids(count)]
        return verdicts.decide(session, work, START, directory(), 0)

    return work


def decide_known(commit: bool) -> Callable[[Session], Any]:
    """What this broker prepared, without looking first."""

    def work(session: Session) -> Any:
        known = ids(verdicts.FEW)
        for transaction_id in known:
            session.run("UPDATE half_message SET check_count = 0 WHERE transaction_id = ?", (transaction_id,))
        memory = verdicts.Memory()
        halves = [Half(1, None, Message("orders", b"y" * 200))]
        memory.prepared.note([PrepareWork(transaction_id, 1, halves) for transaction_id in known], START - 100)
        for queue_id in bulk.TOPIC.queue_ids:
            end = session.fetch_one("SELECT next_offset FROM queue WHERE queue_id = ?", (queue_id,))
            for first in range(end[0] - 3, end[0]) if end else ():
                memory.ends.note({queue_id: (first, first + 1)})
        decided = [VerdictWork(i, commit, VerdictSource.PRODUCER) for i in known]
        return verdicts._decide_from_memory(session, decided, START, directory(), 0, memory)

    return work


def send(session: Session) -> Any:
    work = [SendWork(i, 1, None, Message("orders", b"x")) for i in new_ids(100)]
    return log.send(session, work, START, directory(), 0)


def send_keyed(prefix: str) -> Callable[[Session], Any]:
    def work(session: Session) -> Any:
        work = [
            SendWork(i, 1, None, Message("orders", b"x", dedup_key=f"{prefix}{n}", keys=("a", "b")))
            for n, i in enumerate(new_ids(100))
        ]
        return log.send(session, work, START, directory(), 0)

    return work


def send_later(session: Session) -> Any:
    work = [SendWork(i, 1, None, Message("orders", b"x", deliver_at=START + 1)) for i in new_ids(100)]
    return log.send(session, work, START, directory(), 0)


def move_due(session: Session) -> Any:
    return range(schedule.move_due(session, START, directory(), 0).count)


def recall_some(session: Session) -> Any:
    work = [RecallWork(bulk.scheduled_id(n), 0) for n in range(300, 350)]
    outcomes = recall.recall(session, work, START, Directory())
    assert all(isinstance(outcome, int) for outcome in outcomes)
    return outcomes


def find_by_key(session: Session) -> Any:
    return message_queries.find_messages(session, MessageSearch(TOPIC, "k", limit=WITH_KEY)).messages


def find_by_time(session: Session) -> Any:
    search = MessageSearch(TOPIC, since=START + bulk.ROWS // 2, until=START + bulk.ROWS // 2 + 800)
    return message_queries.find_messages(session, search).messages


def find_by_filter(session: Session) -> Any:
    search = MessageSearch(TOPIC, after=(1, bulk.PER_QUEUE // 2), limit=100, queue_no=1, wanted=EVERY)
    return message_queries.find_messages(session, search).messages


def read_middle(session: Session) -> Any:
    return reading.read_queue(session, TOPIC, 3, bulk.PER_QUEUE // 2, 200, 1 << 30).messages


def read_columns(session: Session) -> Any:
    return reading.read_columns(session, TOPIC, 3, bulk.PER_QUEUE // 2, 200, 1 << 30).messages.offsets


def settle(session: Session) -> Any:
    # All of these leases belong to the first group and are not due.
    found = session.fetch(
        "SELECT lease_id, token, first_offset FROM lease FORCE INDEX (lease_available)"
        " WHERE group_id = 1 AND available_at > ? LIMIT 60",
        (START,),
    )
    held = [Receipt(*row) for row in found]
    work = [*map(ack, held[:20]), *map(NackWork, held[20:40])]
    extensions = [ExtendWork(receipt, 10) for receipt in held[40:]]
    return receipts.settle(session, [*work, *extensions], START, directory(), GroupMemory())


def trim_queue(session: Session) -> Any:
    return range(retention.trim_queue(session, TOPIC, 3, START * 2))


def trim_keyed(session: Session) -> Any:
    return range(retention.trim_queue(session, TOPIC, 1, START * 2))


def trim_topic(session: Session) -> Any:
    return range(retention.trim_topic(session, replace(TOPIC, retention_bytes=1)))


def trim_dedup_keys(session: Session) -> Any:
    return range(retention.trim_dedup_keys(session, START * 3))


def sweep_topic(session: Session) -> Any:
    session.run("UPDATE topic SET deleted_at = 1, name = '~1' WHERE topic_id = 1")
    session.run("UPDATE queue SET deleted_at = 1 WHERE topic_id = 1")
    return range(1000) if topic_deletion.sweep(session, 1) else None


def trim_ops(session: Session) -> Any:
    return range(retention.trim_ops(session, START * 2))


CONSTANT = 60
# As many of each queue are looked at; when one of them is used up, the next look must tell how it goes on.
TRIMMED = (retention.CHUNK // bulk.QUEUES - 1) * bulk.QUEUES + 1

WORK = {
    # What is done: (work, how many it returns, rows read for each of them at most)
    "sweep: halves against op records": (sweep, PENDING, 5),
    "due checks": (claim_checks, 2 * DUE_OF_GROUP, 10),
    "parking": (park, bulk.PENDING_GROUPS * PARK_OF_GROUP, 4),
    "pull of 10": (pull(10), 10, 4),
    "pull of 100": (pull(100), 100, 4),
    "pull of 1000": (pull(1000), 1000, 4),
    "pull of everything": (pull(QUEUED := BACKLOG * bulk.QUEUES), QUEUED, 4),
    "take-over of expired leases": (take_over, DUE_LEASES, 6),
    "prepare": (prepare, 100, 3),
    "prepare again": (prepare_again, 50, 6),
    "commit of 1": (decide(1, True), 1, 14),
    "commit of 100": (decide(100, True), 100, 14),
    "commit of 500": (decide(500, True), 500, 14),
    "commit of 16 that are known": (decide_known(True), 16, 16),
    "rollback of 16 that are known": (decide_known(False), 16, 16),
    "rollback of 500": (decide(500, False), 500, 9),
    "rollback of 100": (decide(100, False), 100, 9),
    "send": (send, 100, 3),
    "reading in the middle": (read_middle, 200, 4),
    "reading columns in the middle": (read_columns, 200, 4),
    "ack, nack and extension": (settle, 60, 5),
    "trimming a queue": (trim_queue, 1000, 4),
    "trimming op records": (trim_ops, 1000, 7),
    "trimming a queue with keys": (trim_keyed, 1000, 5),
    "trimming by size": (trim_topic, TRIMMED, 4),
    "trimming dedup keys": (trim_dedup_keys, 1000, 4),
    "clearing a deleted topic": (sweep_topic, 1000, 5),
    "prepare with dedup keys": (prepare_keyed, 100, 5),
    "send with dedup keys": (send_keyed("new"), 100, 5),
    "send of duplicates": (send_keyed("key"), 100, 6),
    "send with delay": (send_later, 100, 3),
    "moving what is due": (move_due, DUE, 14),
    "recall": (recall_some, 50, 14),
    "find by key": (find_by_key, WITH_KEY, 8),
    "find by time": (find_by_time, 100, 6),
    "find by filter": (find_by_filter, 100, 14),
}
# Rows locked for each of what is returned, where it is not one: messages and op records, queues and keys.
LOCKED = {"moving what is due": 3, "recall": 3, "send of duplicates": 1, "trimming a queue with keys": 2}
LOCKED |= {"trimming by size": 2, "clearing a deleted topic": 2}
