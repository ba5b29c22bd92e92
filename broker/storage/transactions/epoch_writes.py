"""Transactions that are written with the commit of an epoch: into the log at once, without half messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.place import InLog
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import NotFound
from broker.storage.log import keys
from broker.storage.log.offsets import take_offsets
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.ports.epochs import EpochCommitted
    from broker.ports.transactions import PrepareWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

_OP_COLUMNS = (
    "transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at, decided_at, released"
)


def append(
    session: Session,
    transactions: Sequence[PrepareWork],
    now: int,
    directory: Directory,
    rotation: int,
    done: EpochCommitted,
) -> None:
    """Appends the messages of transactions, in their order, leaving out those that have an op record; counts in `done`.

    Raises:
        NotFound: a topic was deleted.
    """
    known = {
        row[0]
        for row in session.fetch_in(
            "SELECT transaction_id FROM op_record WHERE transaction_id",
            sorted({own.transaction_id for own in transactions}),
        )
    }
    new = list({own.transaction_id: own for own in transactions if own.transaction_id not in known}.values())
    if not new:
        return
    topics = directory.by_ids(session, {half.topic_id for own in new for half in own.halves})
    queues = {own.transaction_id: _queues(own, topics, rotation) for own in new}
    wanted: dict[int, tuple[int, int]] = {}
    for own in new:
        for queue_id, half in zip(queues[own.transaction_id], own.halves, strict=True):
            count, size = wanted.get(queue_id, (0, 0))
            wanted[queue_id] = (count + 1, size + len(half.message.body))
    following = take_offsets(session, wanted)
    state, source = int(TransactionState.COMMITTED), int(VerdictSource.SINK)
    ops, messages = [], []
    entries: list[keys.Entry] = []
    for own in new:
        places = []
        for position, (queue_id, half) in enumerate(zip(queues[own.transaction_id], own.halves, strict=True)):
            offset = following[queue_id]
            following[queue_id] = offset + 1
            places.append(InLog(queue_id, offset))
            messages.append((queue_id, offset, own.transaction_id, position, *rows.content(half.message), now, now))
            if half.message.keys:
                entries += keys.entries(half.topic_id, queue_id, offset, half.message.keys)
            done.end_offsets[half.topic_id, queue_id] = offset + 1
        released = rows.encode_released(places)
        ops.append((own.transaction_id, state, source, own.producer_group_id, len(places), 0, now, now, released))
    session.execute_all(
        [
            *session.insertion("op_record", _OP_COLUMNS, sorted(ops)),
            *session.insertion("message", rows.MESSAGE_COLUMNS, messages),
            *keys.insertion(session, entries),
        ]
    )
    done.messages += len(messages)


def _queues(own: PrepareWork, topics: dict[int, Topic], rotation: int) -> list[int]:
    """The queue of each message."""
    chosen = []
    for half in own.halves:
        if half.topic_id not in topics:
            raise NotFound(
                f"The topic {half.message.topic!r} was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topic"
            )
        chosen.append(topics[half.topic_id].choose_queue(half.queue_no, half.message.priority, rotation))
    return chosen
