"""Delivery: handing out ranges under leases, taking over what expired, and settling receipts."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.lease import Lease, receipt_gone, runs
from broker.domain.retry import RetryPolicy
from broker.domain.topic import ConsumerGroup, Topic
from broker.errors import BrokerError, NotFound, StaleReceipt
from broker.services.ports import (
    AckWork,
    Claimed,
    ClaimWork,
    Delivered,
    ExtendWork,
    NackWork,
    Receipt,
    ReceiptOutcome,
)
from broker.storage import dead_letters, rows
from broker.storage.log import fitting, log_messages, range_of, read_range, total_size
from broker.storage.session import Session, Statement, insertion_of_one, marks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from broker.domain.message import LogMessage
    from broker.storage.directory import Directory

LARGEST_RANGE = 1024
_TAKE_OVERS_AT_ONCE = 64
_INSERT_COLUMNS = (
    "group_id, queue_id, first_offset, message_count, token, attempt, available_at, owner, settled, moved, last_error"
)

_random = random.SystemRandom()

# Only of queues the consumer reads: leases on a topic that nobody reads any more would fill the limit for ever.
DUE_LEASES = (
    "SELECT lease_id FROM lease{index} WHERE group_id = ? AND available_at <= ? AND queue_id IN ({queue_ids})"
    " ORDER BY available_at LIMIT ?"
)

_BACKLOG = (
    "SELECT p.queue_id, p.next_offset, q.next_offset, q.min_offset FROM group_progress p"
    " JOIN queue q ON q.queue_id = p.queue_id"
    " WHERE p.group_id = ? AND p.queue_id IN ({queue_ids}) AND q.next_offset > p.next_offset"
)

_Place = tuple[Topic, int]
"""Topic and queue number of a queue."""


def new_token() -> int:
    """A fencing token; it cannot be guessed."""
    return _random.getrandbits(62)


def join(session: Session, group: ConsumerGroup, topics: Collection[Topic]) -> None:
    """Makes sure the group has a progress row for every queue of these topics; new ones start at the beginning.

    Raises:
        NotFound: the group or a topic has been deleted.
    """
    queue_ids = [queue_id for topic in topics for queue_id in topic.queue_ids]
    if not queue_ids:
        return
    known = session.fetch(
        f"SELECT queue_id FROM group_progress WHERE group_id = ? AND queue_id IN ({marks(queue_ids)})",
        (group.group_id, *queue_ids),
    )
    new = sorted(set(queue_ids) - {row[0] for row in known})
    if new:
        locking = session.dialect.for_update
        if not session.fetch("SELECT 1 FROM consumer_group WHERE group_id = ?" + locking, (group.group_id,)):
            raise NotFound(
                f"There is no consumer group {group.name!r}.", reason="GROUP_NOT_FOUND", field="consumer_group"
            )
        topic_ids = sorted({topic.topic_id for topic in topics})
        found = session.fetch_in("SELECT topic_id FROM topic WHERE topic_id", topic_ids, " ORDER BY topic_id" + locking)
        if len(found) != len(topic_ids):
            raise NotFound("A topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topics")
        session.insert(
            "group_progress",
            "group_id, queue_id, next_offset",
            [(group.group_id, queue_id, 0) for queue_id in new],
            keep_existing="group_id",
        )


@dataclass(slots=True)
class _Room:
    """What a consumer still has room for."""

    messages: int
    size: int

    def take(self, delivered: Delivered) -> None:
        self.messages -= len(delivered.messages)
        self.size -= sum([len(message.body) for message in delivered.messages])

    def fitting(self, messages: Sequence[LogMessage]) -> int:
        """How many of these there is room for; at least one."""
        sizes = itertools.accumulate(len(message.body) for message in messages[: self.messages])
        return max(1, sum(1 for size in sizes if size <= self.size))

    @property
    def left(self) -> bool:
        return self.messages > 0 and self.size > 0


def claim(
    session: Session, work: Sequence[ClaimWork], now: int, directory: Directory, turn: int
) -> list[Claimed | BrokerError]:
    """Hands out messages to each consumer in turn: first what expired or was given back, then new ones."""
    return [_claim(session, item, now, directory, turn) if item.topics else Claimed([]) for item in work]


def claim_again(
    session: Session,
    work: Sequence[ClaimWork],
    before: list[Claimed | BrokerError],
    now: int,
    directory: Directory,
    turn: int,
) -> list[Claimed | BrokerError]:
    """Claims after a COMMIT that got no answer; `before` is what was to be handed out then.

    When that COMMIT worked, its leases are there, under tokens that nobody else can have made: they are handed out.
    """
    parts = [part for claimed in before if isinstance(claimed, Claimed) for part in claimed.parts]
    found = session.fetch_in("SELECT token FROM lease WHERE lease_id", [part.lease_id for part in parts])
    if {part.token for part in parts} & {row[0] for row in found}:
        return before
    return claim(session, work, now, directory, turn)


@dataclass(frozen=True, slots=True)
class _Backlog:
    """A queue with messages that were never handed out: from `first` (as far as is known) up to `head`."""

    queue_id: int
    first: int
    head: int
    min_offset: int


def _claim(session: Session, item: ClaimWork, now: int, directory: Directory, turn: int) -> Claimed:
    places = {queue_id: (topic, n) for topic in item.topics for n, queue_id in enumerate(topic.queue_ids)}
    due, behind = session.together(
        [
            # Uses lease_available; the rows are locked by primary key, later.
            Statement(
                DUE_LEASES.format(index=session.dialect.by_index("lease_available"), queue_ids=marks(places)),
                (item.group.group_id, now, *places, _TAKE_OVERS_AT_ONCE),
            ),
            Statement(_BACKLOG.format(queue_ids=marks(places)), (item.group.group_id, *places)),
        ]
    )
    room = _Room(item.limit, item.max_bytes)
    claimed = Claimed([], more=len(due.rows) == _TAKE_OVERS_AT_ONCE)
    if due.rows:
        _take_over(session, item, [row[0] for row in due.rows], places, room, claimed, now, directory)
    backlogs = [_Backlog(*row) for row in behind.rows]
    start = turn % len(backlogs) if backlogs else 0
    for backlog in [*backlogs[start:], *backlogs[:start]]:
        if not room.left:
            claimed.more = True
            break
        _hand_out(session, item, backlog, places[backlog.queue_id], room, claimed, now)
    return claimed


def _hand_out(
    session: Session, item: ClaimWork, backlog: _Backlog, place: _Place, room: _Room, claimed: Claimed, now: int
) -> None:
    queue_id, first = backlog.queue_id, max(backlog.first, backlog.min_offset)
    most = min(backlog.head - first, room.messages, LARGEST_RANGE)
    if most <= 0:
        return  # Retention dropped what was not handed out.
    locked, *sizes = session.together(
        [
            Statement(
                "SELECT next_offset FROM group_progress WHERE group_id = ? AND queue_id = ?"
                + session.dialect.skip_locked,
                (item.group.group_id, queue_id),
            ),
            # A lone message is handed out whatever its size.
            *([total_size(queue_id, first, most)] if most > 1 else []),
        ]
    )
    if not locked.rows:
        claimed.more = True  # Another broker hands out this queue at the moment.
        return
    count = most
    if locked.rows[0][0] != backlog.first:
        # Another broker handed some out between the look at the backlog and now.
        first = max(locked.rows[0][0], backlog.min_offset)
        count = min(backlog.head - first, room.messages, LARGEST_RANGE)
        if count <= 0:
            return
        count = fitting(session, queue_id, first, count, room.size)
    elif sizes and (sizes[0].rows[0][0] or 0) > room.size:
        count = fitting(session, queue_id, first, count, room.size)
    lease = Lease(0, item.group.group_id, queue_id, first, count, new_token(), 1, now + item.lease_time, item.owner)
    _, made, read = session.together(
        [
            Statement(
                "UPDATE group_progress SET next_offset = ? WHERE group_id = ? AND queue_id = ?",
                (first + count, item.group.group_id, queue_id),
            ),
            insertion_of_one("lease", _INSERT_COLUMNS, _values(lease)),
            range_of(queue_id, first, count),
        ]
    )
    topic, queue_no = place
    messages = log_messages(topic.name, queue_no, read.rows)
    if not messages:
        # Retention was here between the look at the backlog and now.
        session.run("DELETE FROM lease WHERE lease_id = ?", (made.last_id,))
        return
    if first + count < backlog.head:
        claimed.more = True
    delivered = Delivered(made.last_id, lease.token, 1, lease.available_at, None, messages)
    room.take(delivered)
    claimed.parts.append(delivered)


def _take_over(
    session: Session,
    item: ClaimWork,
    ids: Sequence[int],
    places: dict[int, _Place],
    room: _Room,
    claimed: Claimed,
    now: int,
    directory: Directory,
) -> None:
    policy = RetryPolicy(item.group.max_attempts)
    found = session.fetch(
        f"SELECT {rows.LEASE_COLUMNS} FROM lease{session.dialect.by_key}"
        f" WHERE lease_id IN ({marks(ids)}) AND available_at <= ?"
        " ORDER BY lease_id" + session.dialect.skip_locked,
        (*sorted(ids), now),
    )
    for lease in sorted(map(rows.lease_from_row, found), key=lambda lease: (lease.available_at, lease.lease_id)):
        if policy.exhausted(lease.attempt):
            _give_up(session, item.group, lease, now, directory)
            continue
        if not room.left:
            claimed.more = True
            return
        topic, queue_no = places[lease.queue_id]
        delivered = _redeliver(session, item, lease, room, now, (topic.name, queue_no))
        if delivered is not None:
            room.take(delivered)
            claimed.parts.append(delivered)


def _redeliver(
    session: Session, item: ClaimWork, lease: Lease, room: _Room, now: int, place: tuple[str, int]
) -> Delivered | None:
    open_offsets = set(lease.open_offsets())
    kept = [
        message
        for message in read_range(session, *place, lease.queue_id, lease.first, lease.count)
        if message.offset in open_offsets
    ]
    if not kept:
        session.run("DELETE FROM lease WHERE lease_id = ?", (lease.lease_id,))
        return None
    taking = room.fitting(kept)
    if taking < len(kept):
        # The consumer has no room for all. The rest keeps its lease, due, so that late acks of it still count.
        rest = kept[taking].offset
        session.together([_storing(replace(_cut(lease, rest, lease.first + lease.count), lease_id=lease.lease_id))])
        lease = _cut(lease, lease.first, rest)
        kept = kept[:taking]
    taken = lease.take_over(owner=item.owner, token=new_token(), until=now + item.lease_time)
    if taken.lease_id:
        session.together([_storing(taken)])
    else:
        taken = replace(taken, lease_id=session.insert_one("lease", _INSERT_COLUMNS, _values(taken)))
    return Delivered(taken.lease_id, taken.token, taken.attempt, taken.available_at, taken.last_error, kept)


def _cut(lease: Lease, start: int, end: int) -> Lease:
    keep = (1 << end - start) - 1
    shift = start - lease.first
    return replace(
        lease,
        lease_id=0,
        first=start,
        count=end - start,
        settled=lease.settled >> shift & keep,
        moved=lease.moved >> shift & keep,
    )


def _give_up(session: Session, group: ConsumerGroup, lease: Lease, now: int, directory: Directory) -> None:
    reason = lease.last_error or f"the lease of delivery {lease.attempt} expired"
    dead_letters.move(session, group, lease, list(lease.open_offsets()), reason, now, directory)
    session.run("DELETE FROM lease WHERE lease_id = ?", (lease.lease_id,))


def settle(
    session: Session, work: Sequence[AckWork | NackWork | ExtendWork], now: int, directory: Directory
) -> list[ReceiptOutcome | BrokerError]:
    """Applies acks, nacks and extensions; one outcome per item, in their order."""
    ids = sorted({item.receipt.lease_id for item in work})
    leases = {
        row[0]: rows.lease_from_row(row)
        for row in session.fetch_in(
            f"SELECT {rows.LEASE_COLUMNS} FROM lease{session.dialect.by_key} WHERE lease_id",
            ids,
            " ORDER BY lease_id" + session.dialect.for_update,
        )
    }
    before = dict(leases)
    outcomes: list[ReceiptOutcome | BrokerError] = [ReceiptOutcome() for _ in work]
    nacks: dict[int, list[tuple[int, NackWork]]] = defaultdict(list)
    acked: dict[int, int] = defaultdict(int)
    for index, item in enumerate(work):
        receipt = item.receipt
        lease = leases.get(receipt.lease_id)
        refusal = _refusal(lease, receipt)
        if lease is None or refusal is not None:
            outcomes[index] = refusal or receipt_gone()
            continue
        outcomes[index] = ReceiptOutcome(held_until=lease.available_at)
        if isinstance(item, AckWork):
            acked[lease.lease_id] |= 1 << receipt.offset - lease.first
        elif isinstance(item, NackWork):
            nacks[lease.lease_id].append((index, item))
        else:
            until = now + item.lease_time
            leases[lease.lease_id] = replace(lease, available_at=until)
            outcomes[index] = ReceiptOutcome(expires_at=until, held_until=lease.available_at)
    for lease_id, bits in acked.items():
        leases[lease_id] = replace(leases[lease_id], settled=leases[lease_id].settled | bits)
    if nacks:
        groups = _groups(session, {leases[lease_id].group_id for lease_id in nacks})
        for lease_id, items in nacks.items():
            lease = leases[lease_id]
            leases[lease_id] = _give_back(session, groups[lease.group_id], lease, items, outcomes, now, directory)
    done = sorted(lease_id for lease_id, lease in leases.items() if lease.done)
    changed = [leases[lease_id] for lease_id in sorted(leases) if leases[lease_id] != before[lease_id]]
    session.together(
        [*session.deletion("lease", "lease_id", done), *[_storing(lease) for lease in changed if not lease.done]]
    )
    return outcomes


def settle_again(
    session: Session,
    work: Sequence[AckWork | NackWork | ExtendWork],
    before: Sequence[ReceiptOutcome | BrokerError],
    now: int,
    directory: Directory,
) -> list[ReceiptOutcome | BrokerError]:
    """Settles after a COMMIT that got no answer; `before` is what was to be said then.

    A receipt that was good then and is stale now was settled by that COMMIT, as long as its lease has not run out:
    nobody else can have taken the message since.
    """
    return [
        first
        if isinstance(second, StaleReceipt) and isinstance(first, ReceiptOutcome) and now < first.held_until
        else second
        for first, second in zip(before, settle(session, work, now, directory), strict=True)
    ]


def _refusal(lease: Lease | None, receipt: Receipt) -> StaleReceipt | None:
    if lease is None:
        return receipt_gone()
    try:
        lease.check_receipt(receipt.token, receipt.offset)
    except StaleReceipt as stale:
        return stale
    return None


def _groups(session: Session, group_ids: Iterable[int]) -> dict[int, ConsumerGroup]:
    found = session.fetch_in(
        "SELECT group_id, name, max_attempts, created_at FROM consumer_group WHERE group_id", sorted(group_ids)
    )
    return {row[0]: ConsumerGroup(*row) for row in found}


def _give_back(
    session: Session,
    group: ConsumerGroup,
    lease: Lease,
    items: Sequence[tuple[int, NackWork]],
    outcomes: list[ReceiptOutcome | BrokerError],
    now: int,
    directory: Directory,
) -> Lease:
    """Moves nacked messages out of a lease: into waiting leases, or to the dead letter topic."""
    policy = RetryPolicy(group.max_attempts)
    waiting: dict[tuple[int, int, str | None], list[int]] = defaultdict(list)
    lost: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, item in items:
        offset = item.receipt.offset
        if lease.settled >> offset - lease.first & 1:
            continue  # Handled (or given back) in this very batch, or before.
        lease = lease.move_out([offset])
        reason = item.reason or lease.last_error
        if item.untried:
            waiting[(now, lease.attempt - 1, lease.last_error)].append(offset)
        elif policy.exhausted(lease.attempt):
            lost[reason or "given back"].append((index, offset))
        else:
            delay = policy.delay_after(lease.attempt) if item.delay is None else item.delay
            waiting[(now + delay, lease.attempt, reason)].append(offset)
    for reason, entries in lost.items():
        places = dead_letters.move(session, group, lease, [offset for _, offset in entries], reason, now, directory)
        for index, offset in entries:
            if offset in places:
                place = places[offset]
                outcomes[index] = ReceiptOutcome(
                    dead_letter=(place.queue_id, place.offset),
                    dead_letter_message_id=place.message_id,
                    held_until=lease.available_at,
                )
    new = []
    for (available_at, attempt, last_error), offsets in waiting.items():
        for first, count in runs(sorted(offsets)):
            new.append(
                _values(
                    Lease(
                        0,
                        lease.group_id,
                        lease.queue_id,
                        first,
                        count,
                        new_token(),
                        attempt,
                        available_at,
                        last_error=last_error,
                    )
                )
            )
    if new:
        session.insert("lease", _INSERT_COLUMNS, new)
    return lease


def _values(lease: Lease) -> tuple[object, ...]:
    return (
        lease.group_id,
        lease.queue_id,
        lease.first,
        lease.count,
        lease.token,
        lease.attempt,
        lease.available_at,
        lease.owner,
        rows.encode_bits(lease.settled, lease.count),
        rows.encode_bits(lease.moved, lease.count),
        lease.last_error,
    )


def _storing(lease: Lease) -> Statement:
    return Statement(
        "UPDATE lease SET first_offset = ?, message_count = ?, token = ?, attempt = ?, available_at = ?, owner = ?,"
        " settled = ?, moved = ?, last_error = ? WHERE lease_id = ?",
        (*_values(lease)[2:], lease.lease_id),
    )


def groups_with_due(session: Session, now: int) -> list[int]:
    """Groups that have a lease anyone may take. One entry of lease_available a group."""
    groups = session.fetch("SELECT group_id FROM consumer_group")
    found = session.fetch_each(
        "SELECT ?, MIN(available_at) FROM lease WHERE group_id = ?", [(group_id, group_id) for (group_id,) in groups]
    )
    return [group_id for group_id, earliest in found if earliest is not None and earliest <= now]
