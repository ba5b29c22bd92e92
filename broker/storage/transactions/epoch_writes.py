"""Transactions that are written with the commit of an epoch: into the log at once, without half messages."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import NotFound
from broker.storage.log import message_id_reuse
from broker.storage.log.appending import Appended
from broker.storage.log.appending import append as append_messages
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
    """Appends the messages of transactions, in their order, leaving out those that are committed; counts in `done`.

    Raises:
        AlreadyExists: a transaction with one of the ids was rolled back, or waits for a verdict.
        NotFound: a topic was deleted.
    """
    states = dict(
        session.fetch_in(
            "SELECT transaction_id, state FROM op_record WHERE transaction_id",
            sorted({own.transaction_id for own in transactions}),
        )
    )
    if any(state != TransactionState.COMMITTED for state in states.values()):
        raise message_id_reuse.reused()
    new = list({own.transaction_id: own for own in transactions if own.transaction_id not in states}.values())
    if not new:
        return
    # Half messages of producers: the verdict is theirs. Those of a sink may have been left by an attempt before.
    waiting = f"SELECT transaction_id FROM half_message WHERE check_state <> {rows.NO_CHECKS} AND position = 0"
    waiting += " AND transaction_id"
    if session.fetch_in(waiting, sorted(own.transaction_id for own in new)):
        raise message_id_reuse.reused()
    topics = directory.by_ids(session, {half.topic_id for own in new for half in own.halves})
    plan = append_messages(
        session,
        [
            Appended(
                queue_id,
                half.topic_id,
                own.transaction_id,
                position,
                half.message,
                topics[half.topic_id].compression,
            )
            for own in new
            for position, (queue_id, half) in enumerate(zip(_queues(own, topics, rotation), own.halves, strict=True))
        ],
        now,
    )
    state, source = int(TransactionState.COMMITTED), int(VerdictSource.SINK)
    ops = []
    following = iter(plan.places)
    for own in new:
        released = list(itertools.islice(following, len(own.halves)))
        for place, half in zip(released, own.halves, strict=True):
            done.end_offsets[half.topic_id, place.queue_id] = place.offset + 1
        head = (own.transaction_id, state, source, own.producer_group_id, len(released))
        ops.append((*head, 0, now, now, rows.encode_released(released)))
    session.execute_all([*session.insertion("op_record", _OP_COLUMNS, sorted(ops)), *plan.statements])
    done.messages += len(plan.places)


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
