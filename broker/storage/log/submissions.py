"""Submissions: what applications inserted and committed becomes messages, in the order of insertion.

Offsets are given here, under the locks of the queues, so that they stay dense; the application's own transaction locks
nothing but its new rows. Rows of open transactions are not seen, and are passed over where they are locked. One broker
at a time does it (see turns), because a later part that was released first would overtake in a message group.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from broker.domain.cell import name_of_topic
from broker.domain.keys import dedup_hash
from broker.domain.message import Message
from broker.domain.place import InLog, Scheduled
from broker.errors import AlreadyExists, BrokerError, InvalidArgument, Moved, NotFound, RowsLocked
from broker.ports.log import Duplicate
from broker.ports.submissions import PassedOver, ReleasedSubmissions, Submission
from broker.storage.catalog.free_queues import FreeQueues
from broker.storage.catalog.placement import left_here
from broker.storage.engine.statements import Statement, marks
from broker.storage.log import log
from broker.storage.log.turns import take_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.log import SendWork
    from broker.ports.submissions import SubmissionWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

TURN = "submissions"
AT_ONCE = 1000
BYTES_AT_ONCE = 8 * 1024 * 1024
FIRST_PAGE = 32
FIRST_PAGE_OF_LARGE = 2
"""The same behind large ones: to measure 32 bodies of 16 MiB for each that is taken takes seconds."""

_CONTENT = (
    "message_id, topic_name, body, tag, message_keys, message_group, properties, priority, deliver_at, delay,"
    " deduplication_key"
)
_REFUSED = f"INSERT INTO refused_submission (submission_id, {_CONTENT}, refused_at, cause)"
_REFUSE = (
    f"p.submission_id, {', '.join(f's.{column}' for column in _CONTENT.split(', '))}, {{now}}, p.cause"
    " FROM {given} {joined_to} submission s{by_key} ON s.submission_id = p.submission_id"
)
_SIZE = "LENGTH(body)" + "".join(
    f" + COALESCE(LENGTH({column}), 0)" for column in ("tag", "message_keys", "properties")
)
_LONGEST_CAUSE = 500


def newest(session: Session) -> int | None:
    """The highest number of the committed submissions; None: there are none.

    A round reads up to it and no further. It reads in several queries, and what is committed between two of them would
    be missing from the first and have its successors in the second. Numbers are given in order, so such successors are
    above the bound.
    """
    highest = session.fetch("SELECT MAX(submission_id) FROM submission")[0][0]
    return None if highest is None else int(highest)


def waiting(
    session: Session,
    until: int,
    after: int = -(1 << 63),
    at_once: int = AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
    passed_over: PassedOver | None = None,
    first_page: int = FIRST_PAGE,
) -> list[Submission]:
    """Committed submissions between two numbers; in the order of the primary key.

    Args:
        session: for reading.
        until: the last number.
        after: the number before the first.
        at_once: maximum number.
        bytes_at_once: maximum bytes, if it is more than one.
        passed_over: those that are left out.
        first_page: how many are measured before it is known how large they are.
    """
    bounds = at_once, bytes_at_once, first_page
    numbers = _numbers(session, after, until, bounds, *_left_out(passed_over or PassedOver()))
    if not numbers:
        return []
    found = session.fetch_in(
        f"SELECT submission_id, {_CONTENT} FROM submission WHERE submission_id", numbers, " ORDER BY submission_id"
    )
    return [Submission(row[0], row[1], _message(row)) for row in sorted(found, key=lambda row: row[0])]


def _left_out(passed_over: PassedOver) -> tuple[str, list[str]]:
    """The condition that leaves out what is known to wait, and its values; one by one it would be read each time.

    By bytes: servers take texts that differ in spaces at their end for the same.
    """
    condition, values = "", []
    for names, mine in (
        (
            passed_over.keys,
            "deduplication_key IS NULL OR message_group IS NOT NULL OR {} HEX(deduplication_key) NOT IN ({})",
        ),
        (passed_over.groups, "message_group IS NULL OR {} HEX(message_group) NOT IN ({})"),
    ):
        by_topic: dict[str, list[str]] = {}
        for topic, name in sorted(names):
            by_topic.setdefault(topic, []).append(name)
        for topic, own in by_topic.items():
            condition += f" AND ({mine.format('topic_name <> ? OR', marks(own))})"
            values += [topic, *[name.encode().hex().upper() for name in own]]
    if passed_over.topics:
        condition += f" AND topic_name NOT IN ({marks(passed_over.topics)})"
        values += sorted(passed_over.topics)
    return condition, values


def _numbers(
    session: Session, after: int, until: int, bounds: tuple[int, int, int], condition: str, values: Sequence[str]
) -> list[int]:
    """Those between two numbers, up to bounds.

    To learn its size the server reads a body, so they are not asked for far beyond the bound: at most as many as were
    read so far, and by their sizes.
    """
    numbers: list[int] = []
    at_once, bytes_at_once, first_page = bounds
    size, wanted = 0, min(first_page, at_once)
    while wanted > 0:
        page = session.fetch(
            f"SELECT submission_id, {_SIZE} FROM submission WHERE submission_id > ? AND submission_id <= ?{condition}"
            " ORDER BY submission_id LIMIT ?",
            (numbers[-1] if numbers else after, until, *values, wanted),
        )
        for number, length in page:
            size += length
            if numbers and size > bytes_at_once:
                return numbers
            numbers.append(number)
        if len(page) < wanted:
            break
        fitting = (bytes_at_once - size) * len(numbers) // max(size, 1)
        wanted = min(at_once - len(numbers), len(numbers), fitting)
    return numbers


def release(
    session: Session, work: Sequence[SubmissionWork], now: int, directory: Directory, rotation: int
) -> ReleasedSubmissions:
    """Sends submissions and removes them; see SubmissionStore.release_submissions.

    Args:
        session: a transaction.
        work: the submissions, in their order.
        now: the database's time.
        directory: the topics.
        rotation: chooses among queues.
    """
    done = ReleasedSubmissions()
    if not take_turn(session, TURN):
        done.busy = True
        return done
    locked = {
        row[0]
        for row in session.fetch_in(
            "SELECT submission_id FROM submission WHERE submission_id",
            [item.number for item in work],
            " ORDER BY submission_id" + session.dialect.skip_locked,
        )
    }
    sending, ended = _sending(work, locked, _left(session, work), done), []
    # What is for a queue that another session holds waits for the next round, and holds up nothing else.
    free = FreeQueues(session)
    outcomes = log.send(session, [each for _, each in sending], now, directory, rotation, free) if sending else []
    for (number, sent), outcome in zip(sending, outcomes, strict=True):
        if isinstance(outcome, InLog):
            queue = (sent.topic_id, outcome.queue_id)
            done.end_offsets[queue] = max(outcome.offset + 1, done.end_offsets.get(queue, 0))
        elif isinstance(outcome, Scheduled):
            done.next_due = min(outcome.due, done.next_due or outcome.due)
        elif isinstance(outcome, NotFound):
            done.gone.add(sent.message.topic)
            done.deferred.add(number)
            continue
        elif isinstance(outcome, AlreadyExists) and outcome.reason != "DEDUP_KEY_PENDING":
            done.refused[number] = _cause(outcome)
            continue
        elif not isinstance(outcome, Duplicate | tuple):
            # For now: its queue is held, or another message with its dedup_key has no verdict yet.
            done.deferred.add(number)
            if isinstance(outcome, RowsLocked):
                done.held.add((sent.message.topic, sent.message.message_group))
            if isinstance(outcome, AlreadyExists) and sent.message.dedup_key:
                done.pending[number] = sent.topic_id, dedup_hash(sent.message.dedup_key)
            continue
        ended.append(number)
    done.count = len(ended)
    session.execute_all(
        [
            # One that was refused before, and inserted again under its number.
            *session.deletion("refused_submission", "submission_id", sorted(done.refused)),
            *_refusal(session, sorted(done.refused.items()), now),
            *session.deletion("submission", "submission_id", sorted([*ended, *done.refused])),
        ]
    )
    return done


def _refusal(session: Session, refused: Sequence[tuple[int, str]], now: int) -> list[Statement]:
    dialect = session.dialect
    select = _REFUSE.format(now=now, given="{given}", joined_to=dialect.joined_to, by_key=dialect.by_key)
    return session.insertion_with(_REFUSED, "p (submission_id, cause)", refused, select)


def refuse_held_keys(session: Session, work: Sequence[SubmissionWork]) -> None:
    """Fails at once where another session holds a deduplication key; the sending itself would wait for it.

    Args:
        session: a transaction.
        work: the submissions.

    Raises:
        Exception: the database's, that of a wait for a lock.
    """
    if session.dialect.one_writer:
        return
    for item in work:
        if not isinstance(item.send, BrokerError) and (key := item.send.message.dedup_key):
            session.fetch(
                "SELECT transaction_id FROM dedup_key WHERE topic_id = ? AND dedup_hash = ? FOR UPDATE NOWAIT",
                (item.send.topic_id, dedup_hash(key)),
            )


def _left(session: Session, work: Sequence[SubmissionWork]) -> set[str]:
    """Topics that have left this cell, or are leaving it; submissions for them wait here."""
    missing = {item.topic for item in work if item.topic}
    return {topic for topic in missing if left_here(session, name_of_topic(topic))}


def _sending(
    work: Sequence[SubmissionWork], locked: set[int], left: set[str], done: ReleasedSubmissions
) -> list[tuple[int, SendWork]]:
    """What is sent: that which is locked here, and no other session holds it or one before it in its message group."""
    sending: list[tuple[int, SendWork]] = []
    held: set[tuple[int, str | None]] = set()
    for item in work:
        if isinstance(item.send, BrokerError):
            if item.topic in left or isinstance(item.send, Moved):
                done.deferred.add(item.number)
                done.held.add((item.topic, None))
            elif item.number in locked:
                done.refused[item.number] = _cause(item.send)
            continue
        order = item.send.topic_id, item.send.message.message_group
        if item.number in locked and order not in held:
            sending.append((item.number, item.send))
            continue
        done.deferred.add(item.number)
        if item.send.message.message_group is not None:
            held.add(order)
    return sending


def trim_refused(session: Session, before: int) -> int:
    """Deletes some that were refused before a time; returns how many.

    By primary key: they were refused about in its order, and one that was refused later holds up others for as long.
    """
    page = session.fetch(
        "SELECT submission_id, refused_at FROM refused_submission ORDER BY submission_id LIMIT ?", (AT_ONCE,)
    )
    old = [number for number, refused_at in page if refused_at < before]
    # By the time again: it may have been submitted, and refused, anew.
    query = "DELETE FROM refused_submission WHERE submission_id = ? AND refused_at < ?"
    session.execute_all([Statement(query, (number, before)) for number in old])
    return len(old)


def _cause(error: BrokerError) -> str:
    return (f"{error.field}: {error.message}" if error.field else error.message)[:_LONGEST_CAUSE]


def _message(row: Sequence[Any]) -> Message | BrokerError:
    _, _, topic, body, tag, keys, group, properties, priority, deliver_at, delay, dedup_key = row
    try:
        if priority < 0 or (delay or 0) < 0:
            raise InvalidArgument("It is at least 0.", field="priority" if priority < 0 else "delay")
        if not isinstance(body, str | bytes | bytearray | memoryview):
            raise InvalidArgument("It is no bytes.", field="body")
        return Message(
            topic=topic,
            body=body.encode() if isinstance(body, str) else bytes(body),
            tag=tag,
            keys=tuple(_texts(json.loads(keys), "message_keys")) if keys else (),
            message_group=group,
            properties=_headers(json.loads(properties)) if properties else {},
            priority=priority,
            deliver_at=deliver_at,
            delay=delay,
            dedup_key=dedup_key,
        )
    except (TypeError, ValueError, RecursionError):
        return InvalidArgument(
            "Not JSON, or no text: message_keys is a list, properties an object.", field="message_keys, properties"
        )
    except BrokerError as error:
        return error


def _texts(decoded: object, column: str) -> list[str]:
    if isinstance(decoded, list) and all(isinstance(each, str) for each in decoded):
        "".join(decoded).encode()  # JSON can name what no text has.
        return decoded
    raise InvalidArgument("It is a JSON list of texts.", field=column)


def _headers(decoded: object) -> dict[str, str]:
    if isinstance(decoded, dict) and all(isinstance(each, str) for each in decoded.values()):
        "".join([*decoded, *decoded.values()]).encode()
        return decoded
    raise InvalidArgument("It is a JSON object whose values are texts.", field="properties")
