"""Recalls of scheduled messages.

The transaction that deletes the row of a scheduled message decides between a recall and the move into the log. Rows are
locked in the order of the move: scheduled messages by time, then op records by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.domain.ids import message_id
from broker.domain.keys import dedup_hash
from broker.domain.place import InLog, Recalled, Scheduled
from broker.errors import BrokerError, NotFound, Refused
from broker.storage.engine.statements import Statement
from broker.storage.log import deduplication
from broker.storage.log.outcomes import UNKNOWN, RecordedOutcome, recorded_outcomes
from broker.storage.log.schedule import lock_ops
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.log import RecallWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

_BY_KEY = "FROM scheduled_message WHERE deliver_at = ? AND transaction_id = ? AND position = ?"


class _Waiting(NamedTuple):
    """The primary key of a scheduled message."""

    deliver_at: int
    transaction_id: bytes
    position: int


def recall(session: Session, work: Sequence[RecallWork], now: int, directory: Directory) -> list[int | BrokerError]:
    """Recalls messages; returns the time of each recall. For messages recalled before it is the original time."""
    standing = recorded_outcomes(session, {item.transaction_id for item in work})
    hidden = {
        (item.transaction_id, item.position)
        for item in work
        if item.may is not None and not item.may(_topic_of(session, item, _of(item, standing), directory))
    }
    allowed = [item for item in work if (item.transaction_id, item.position) not in hidden]
    waiting = sorted(
        {
            _Waiting(place.due, item.transaction_id, item.position)
            for item in allowed
            if isinstance(place := _of(item, standing).place(item.position), Scheduled)
        }
    )
    if waiting:
        _take_back(session, waiting, now)
        # The op record has the place of messages moved into the log meanwhile.
        standing = recorded_outcomes(session, {item.transaction_id for item in work})
    return [
        _missing(item) if (item.transaction_id, item.position) in hidden else _outcome(item, standing) for item in work
    ]


def _topic_of(session: Session, item: RecallWork, own: RecordedOutcome, directory: Directory) -> str:
    """The name of a message's topic; empty if that, or the message, is not known."""
    place = own.place(item.position)
    if isinstance(place, InLog):
        found = directory.of_queue(session, place.queue_id)
        return found[0].name if found is not None else ""
    if place is not None:
        topic_id = place.topic_id
    else:
        query = "SELECT topic_id FROM half_message WHERE transaction_id = ? AND position = ?"
        row = session.fetch_one(query, (item.transaction_id, item.position))
        if row is None:
            return ""
        topic_id = row[0]
    known = directory.by_ids(session, [topic_id]).get(topic_id)
    return known.name if known is not None else ""


def _of(item: RecallWork, standing: dict[bytes, RecordedOutcome]) -> RecordedOutcome:
    return standing.get(item.transaction_id, UNKNOWN)


def _take_back(session: Session, waiting: Sequence[_Waiting], now: int) -> None:
    found = session.execute_all(
        [Statement(f"SELECT topic_id, properties {_BY_KEY}{session.dialect.for_update}", key) for key in waiting]
    )
    freed = []
    gone = []
    for key, answer in zip(waiting, found, strict=True):
        if not answer.rows:
            continue
        gone.append(key)
        topic_id, properties = answer.rows[0]
        if own := rows.stored_dedup_key(properties):
            freed.append((topic_id, dedup_hash(own), key.transaction_id))
    if not gone:
        return
    places = {
        transaction_id: list(rows.decode_released(text))
        for transaction_id, text in lock_ops(session, {key.transaction_id for key in gone})
    }
    for key in gone:
        if key.transaction_id in places:
            waited = places[key.transaction_id][key.position]
            if isinstance(waited, Scheduled):
                places[key.transaction_id][key.position] = Recalled(now, waited.topic_id, waited.due)
    session.execute_all(
        [
            *[Statement(f"DELETE {_BY_KEY}", key) for key in gone],
            *session.update_each(
                "op_record",
                "transaction_id",
                "released",
                [(transaction_id, rows.encode_released(own)) for transaction_id, own in sorted(places.items())],
            ),
            *deduplication.freeing(freed),
        ]
    )


def _missing(item: RecallWork) -> NotFound:
    return NotFound(
        f"There is no message {message_id(item.transaction_id, item.position)}: it was never committed here, or its op"
        " record is past retention.",
        reason="MESSAGE_NOT_FOUND",
        field="message_ids",
    )


def _outcome(item: RecallWork, standing: dict[bytes, RecordedOutcome]) -> int | BrokerError:
    own_id = message_id(item.transaction_id, item.position)
    own = _of(item, standing)
    place = own.place(item.position)
    if own.undecided:
        return Refused(
            f"The transaction of {own_id} has no verdict yet; roll it back instead.",
            reason="NOT_COMMITTED",
            field="message_ids",
        )
    if place is None:
        return _missing(item)
    if isinstance(place, Recalled):
        return place.recalled_at
    if isinstance(place, Scheduled):
        return NotFound(
            f"The message {own_id} was dropped: its topic was deleted.", reason="MESSAGE_NOT_FOUND", field="message_ids"
        )
    return Refused(
        f"The message {own_id} is in the log already; consumers may have it.",
        reason="ALREADY_RELEASED",
        field="message_ids",
    )
