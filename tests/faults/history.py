"""What clients saw, and whether what the brokers kept and delivered is one of the things it may mean.

Every call is recorded with its outcome: ok, failed (the broker refused it for good), or unknown (no answer, or
"try again"). An unknown call may have had its effect or not, but then everything that can be asked must agree on it.
`judge` names each way in which a history and what was found at its end contradict each other.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations, count
from typing import TYPE_CHECKING, Literal, TypeAlias

from faults.client import COMMITTED, PARKED, PREPARED, ROLLED_BACK, TRY_AGAIN_SOON, ItemRefused

if TYPE_CHECKING:
    from halfmq.v1 import consumer_pb2

Call: TypeAlias = Literal["prepare", "commit", "rollback", "send"]
"""A verdict is the same call whether a producer gave it by itself or in answer to a check."""
Place: TypeAlias = tuple[int, int]
"""Queue and offset."""
MARGIN = 1.0
"""Seconds before its end from which a lease is not relied on: brokers know the database's time by readings of it."""
LOST = frozenset({"RECEIPT_STALE", "RECEIPT_GONE"})
"""Why a receipt is refused whose lease is over, or whose message is settled."""


class Outcome(Enum):
    """What a client knows of a call."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """A call and its repetitions; `begun` and `ended` are moments in the order of the whole history.

    `place` is where the message lies, as the answer to a commit or a send told. A sent message goes by its own id.
    """

    transaction_id: str
    call: Call
    begun: int
    ended: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A check that reached a producer."""

    transaction_id: str
    number: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the log, or in a delivery."""

    transaction_id: str
    body: bytes


@dataclass(slots=True)
class Delivery:
    """A message that reached a consumer.

    `asked` is when the consumer asked for messages, where that was noted. `acknowledging` is set once it asked to have
    this one acknowledged, `acknowledged` is when that was confirmed. With `repeated`, the ack may have been sent again;
    then its confirmation may mean that another consumer has done the work.

    `until`, `came`, `left` and `answered` are seconds of the monotonic clock: until when its lease lasts at least, if
    that is known; when it was here; when its ack was about to be sent; when the answer was here. A test that is slow
    notes them so that it knows less, and nothing wrong. `refused` is why the ack was refused for good.
    """

    place: Place
    entry: Entry
    attempt: int
    arrived: int
    message_group: str = ""
    asked: int | None = None
    acknowledging: bool = False
    acknowledged: int | None = None
    repeated: bool = False
    until: float | None = None
    came: float = 0.0
    left: float | None = None
    answered: float | None = None
    refused: str = ""

    @property
    def answered_under_lease(self) -> bool:
        """Whether the ack was answered when nobody else could have the message, nor have had it since."""
        return self.until is not None and self.answered is not None and self.answered <= self.until - MARGIN

    @property
    def was_left(self) -> bool:
        """Whether the ack may have taken effect.

        One whose COMMIT was in doubt may have, and be refused when the lease has ended: the broker looks again.
        """
        without_effect = self.refused and (self.refused not in LOST or self.answered_under_lease)
        return self.acknowledging and not without_effect

    def held_at(self, moment: float) -> bool:
        """Whether the consumer had the message to itself then, if it had been handed out before."""
        if self.until is None or moment > self.until - MARGIN:
            return False
        return self.left is None or self.left > moment or not self.was_left


class History:
    """Takes notes from many threads. Moments are counted, not read from a clock: only their order matters."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.bodies: dict[str, bytes] = {}
        self.deliveries: list[Delivery] = []
        self.checks: list[Check] = []
        self._moments = count()
        self._changed = threading.Condition()
        self._acknowledged = 0

    def moment(self) -> int:
        return next(self._moments)

    def begin(self, transaction_id: str, call: Call, body: bytes = b"") -> Operation:
        """Notes a call that is about to be made."""
        with self._changed:
            if call in {"prepare", "send"}:
                self.bodies[transaction_id] = body
            self.operations.append(Operation(transaction_id, call, self.moment()))
            return self.operations[-1]

    def end(self, operation: Operation, outcome: Outcome, place: Place | None = None) -> None:
        """Notes what became of it."""
        with self._changed:
            operation.outcome = outcome
            operation.place = place
            operation.ended = self.moment()
            self._acknowledged += outcome is Outcome.OK and operation.call == "commit"
            self._changed.notify_all()

    def check(self, transaction_id: str, number: int) -> None:
        """Notes a check that arrived at a producer."""
        with self._changed:
            self.checks.append(Check(transaction_id, number))

    def deliver(
        self,
        place: Place,
        entry: Entry,
        attempt: int,
        message_group: str = "",
        asked: int | None = None,
        until: float | None = None,
    ) -> Delivery:
        """Notes a message that arrived at a consumer, which asked for it at a moment.

        Its lease lasts until then at least: the monotonic clock when it was asked for, and the time of the lease.
        """
        with self._changed:
            delivery = Delivery(place, entry, attempt, self.moment(), message_group, asked)
            delivery.until, delivery.came = until, time.monotonic()
            self.deliveries.append(delivery)
            return delivery

    def acknowledge(self, taken: Sequence[Delivery], ask: Callable[[], Sequence[consumer_pb2.ReceiptResult]]) -> None:
        """Has deliveries acknowledged by one call, and notes what it says of each."""
        self.leave(taken)
        for delivery, result in zip(taken, ask(), strict=True):
            refusal = ItemRefused(result.error) if result.HasField("error") else None
            if refusal is None:
                self.confirm(delivery)
            elif refusal.code not in TRY_AGAIN_SOON:
                self.refuse(delivery, refusal.reason)

    def leave(self, taken: Sequence[Delivery], *, repeated: bool = False) -> None:
        """Notes that a consumer is about to acknowledge deliveries; `repeated`: if need be, more than once."""
        for delivery in taken:
            delivery.acknowledging, delivery.repeated, delivery.left = True, repeated, time.monotonic()

    def confirm(self, delivery: Delivery) -> None:
        """Notes that one is acknowledged."""
        delivery.answered, delivery.acknowledged = time.monotonic(), self.moment()

    def refuse(self, delivery: Delivery, reason: str) -> None:
        """Notes why the ack of one was refused for good."""
        delivery.answered, delivery.refused = time.monotonic(), reason or "refused"

    @property
    def unanswered(self) -> int:
        """Calls of which the client never learned what became of them, so far."""
        with self._changed:
            return sum(each.ended is not None and each.outcome is Outcome.UNKNOWN for each in self.operations)

    @property
    def acknowledged(self) -> int:
        """Commits that were acknowledged so far."""
        with self._changed:
            return self._acknowledged

    def stored_since(self, moment: int) -> int:
        """Prepares and sends that began after a moment, and were acknowledged; of a verdict a look may be enough."""
        with self._changed:
            begun = [each for each in self.operations if each.call in {"prepare", "send"} and each.begun > moment]
            return sum(each.outcome is Outcome.OK for each in begun)

    @property
    def checked(self) -> int:
        """Commits that were acknowledged in answer to a check."""
        with self._changed:
            asked = {check.transaction_id for check in self.checks}
            commits = [each for each in self.operations if each.call == "commit" and each.outcome is Outcome.OK]
            return sum(commit.transaction_id in asked for commit in commits)

    def await_commits(self, number: int, timeout: float = 60) -> None:
        """Waits until so many further commits were acknowledged."""
        with self._changed:
            wanted = self._acknowledged + number
            if not self._changed.wait_for(lambda: self._acknowledged >= wanted, timeout):
                raise TimeoutError(f"{self._acknowledged} of {wanted} commits were acknowledged within {timeout} s")


@dataclass(frozen=True, slots=True)
class Spent:
    """The checks of a transaction: how many were counted, and the numbers in its check history."""

    count: int
    numbers: Sequence[int]


@dataclass(slots=True)
class Findings:
    """What was there in the end.

    Attributes:
        states: what GetTransaction said of each transaction; None where it knew nothing.
        log: the messages of each queue with their offsets, as they were read.
        heads: the offset that each queue would give out next.
        checks: the checks of each transaction that the broker knows.
        max_checks: how many the brokers may send.
        delayed: the queues whose messages lie in the order of their delivery times.
        leases_kept: leases lasted as long as was said: no clock was set.
    """

    states: Mapping[str, int | None]
    log: Mapping[int, Sequence[tuple[int, Entry]]]
    heads: Mapping[int, int] = field(default_factory=dict)
    checks: Mapping[str, Spent] = field(default_factory=dict)
    max_checks: int = 0
    delayed: Collection[int] = ()
    leases_kept: bool = True


def judge(history: History, found: Findings) -> list[str]:
    """Every contradiction, in words; an empty list when there is none."""
    return [*judge_calls(history, found), *judge_deliveries(history.deliveries, found)]


def judge_calls(history: History, found: Findings) -> list[str]:
    """Every contradiction of what producers were told."""
    return [
        *_judge_log(history, found),
        *_judge_states(history, found),
        *_judge_places(history, found),
        *_judge_checks(history, found),
        *_judge_order(history, found),
    ]


def _judge_log(history: History, found: Findings) -> list[str]:
    wrong = []
    seen: set[str] = set()
    for queue, entries in found.log.items():
        offsets = [offset for offset, _ in entries]
        if offsets != list(range(len(offsets))):
            wrong.append(f"queue {queue}: the offsets are not dense: {_gap(offsets)}")
        if found.heads.get(queue, len(offsets)) != len(offsets):
            wrong.append(f"queue {queue}: {len(offsets)} messages below offset {found.heads[queue]}")
        for offset, entry in entries:
            if entry.transaction_id not in history.bodies:
                wrong.append(f"phantom at {queue}/{offset}: nobody prepared {entry.transaction_id}")
            elif entry.body != history.bodies[entry.transaction_id]:
                wrong.append(f"another body at {queue}/{offset}: {entry.body!r}")
            if entry.transaction_id in seen:
                wrong.append(f"doubled at {queue}/{offset}: {entry.transaction_id}")
            seen.add(entry.transaction_id)
    return wrong


def _gap(offsets: Sequence[int]) -> str:
    place = next(index for index, offset in enumerate(offsets) if index != offset)
    return f"{offsets[place]} where {place} belongs"


def _judge_states(history: History, found: Findings) -> list[str]:
    wrong = []
    released = {entry.transaction_id for entries in found.log.values() for _, entry in entries}
    calls: dict[str, dict[Call, Outcome]] = defaultdict(dict)
    for operation in history.operations:
        # Several checks of a transaction may be answered: what one answer was told holds, whatever became of the rest.
        known = calls[operation.transaction_id].get(operation.call, Outcome.FAILED)
        calls[operation.transaction_id][operation.call] = max(known, operation.outcome, key=_CERTAINTY.index)
    for transaction_id, outcomes in calls.items():
        state = found.states.get(transaction_id)
        if (state == COMMITTED) != (transaction_id in released):
            where = "in" if transaction_id in released else "not in"
            wrong.append(f"{transaction_id} is {_name(state)}, and {where} the log")
        allowed = _allowed(outcomes)
        if state not in allowed:
            said = ", ".join(f"{call} {outcome.value}" for call, outcome in outcomes.items())
            wrong.append(f"{transaction_id} is {_name(state)} after {said}")
    return wrong


_CERTAINTY = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.OK)
_SENT: dict[Outcome, set[int | None]] = {
    Outcome.OK: {COMMITTED},
    Outcome.FAILED: {None},
    Outcome.UNKNOWN: {COMMITTED, None},
}


def _allowed(outcomes: Mapping[Call, Outcome]) -> set[int | None]:
    if "send" in outcomes:
        return _SENT[outcomes["send"]]
    if outcomes.get("commit") is Outcome.OK:
        return {COMMITTED}
    if outcomes.get("rollback") is Outcome.OK:
        return {ROLLED_BACK}
    allowed: set[int | None] = {PREPARED, PARKED}
    if outcomes.get("prepare") is not Outcome.OK:
        allowed.add(None)
    if outcomes.get("commit") is Outcome.UNKNOWN:
        allowed.add(COMMITTED)
    if outcomes.get("rollback") is Outcome.UNKNOWN:
        allowed.add(ROLLED_BACK)
    return allowed


def _judge_places(history: History, found: Findings) -> list[str]:
    log = {(queue, offset): entry.transaction_id for queue, entries in found.log.items() for offset, entry in entries}
    return [
        f"{operation.transaction_id} does not lie where its {operation.call} said: {operation.place}"
        for operation in history.operations
        if operation.place is not None and log.get(operation.place) != operation.transaction_id
    ]


def _judge_checks(history: History, found: Findings) -> list[str]:
    """Every check that was asked is counted, under a number of its own, and there are no more than allowed."""
    wrong = []
    asked: dict[str, list[int]] = defaultdict(list)
    for check in history.checks:
        if check.number in asked[check.transaction_id]:
            wrong.append(f"{check.transaction_id} was asked about twice as check {check.number}")
        asked[check.transaction_id].append(check.number)
    for transaction_id in asked.keys() | found.checks.keys():
        spent = found.checks.get(transaction_id, Spent(0, []))
        uncounted = set(asked[transaction_id]) - set(spent.numbers)
        if uncounted:
            wrong.append(f"{transaction_id} was asked about, and it is not counted: {sorted(uncounted)}")
        if list(spent.numbers) != list(range(1, spent.count + 1)):
            wrong.append(f"{transaction_id} had {spent.count} checks, and has a history of {spent.numbers}")
        if spent.count > found.max_checks:
            wrong.append(f"{transaction_id} had {spent.count} checks; {found.max_checks} are allowed")
        if found.states.get(transaction_id) == PARKED and spent.count < found.max_checks:
            wrong.append(f"{transaction_id} is parked after {spent.count} of {found.max_checks} checks")
    return wrong


@dataclass(slots=True)
class _Released:
    """When a message was asked to be released, first of all, and when that was first confirmed."""

    begun: int
    confirmed: int | None = None


def _releases(history: History) -> dict[str, _Released]:
    releases: dict[str, _Released] = {}
    for operation in history.operations:
        if operation.call not in {"commit", "send"}:
            continue
        release = releases.setdefault(operation.transaction_id, _Released(operation.begun))
        if operation.outcome is Outcome.OK and operation.ended is not None:
            release.confirmed = min(operation.ended, release.confirmed or operation.ended)
    return releases


def _judge_order(history: History, found: Findings) -> list[str]:
    """A commit or send confirmed before another was asked for lies before it, where they share a queue."""
    wrong = []
    releases = _releases(history)
    for queue, entries in found.log.items():
        if queue in found.delayed:
            continue
        latest_begun = -1
        for offset, entry in entries:
            release = releases.get(entry.transaction_id)
            if release is None:
                continue
            if release.confirmed is not None and release.confirmed < latest_begun:
                wrong.append(f"reordered at {queue}/{offset}: acknowledged before one in front of it was asked for")
            latest_begun = max(latest_begun, release.begun)
    return wrong


def judge_deliveries(deliveries: Sequence[Delivery], found: Findings) -> list[str]:
    """Every contradiction of what a consumer group got with the log: each message, in order, under one live lease."""
    wrong = []
    if not found.leases_kept:
        deliveries = [replace(each, until=None) for each in deliveries]
    log = {(queue, offset): entry for queue, entries in found.log.items() for offset, entry in entries}
    # The messages of a message group come in order. Those of none need not: what was handed out, and told to nobody
    # because the database did not answer in time, comes again as not tried, behind others.
    furthest: dict[str, Place] = {}
    seen: set[Place] = set()
    handled: dict[Place, int] = {}
    left = {delivery.place for delivery in deliveries if delivery.was_left}
    confirmed = Counter(
        each.place
        for each in deliveries
        if each.acknowledged is not None and (not each.repeated or each.answered_under_lease)
    )
    wrong += [f"acknowledged {times} times: {place}" for place, times in confirmed.items() if times > 1]
    wrong += _judge_leases(deliveries)
    for delivery in deliveries:
        queue, offset = delivery.place
        if log.get(delivery.place) != delivery.entry:
            wrong.append(f"delivered, but not in the log: {queue}/{offset} {delivery.entry}")
        among = delivery.message_group
        # Behind the first one of a message group, those that come again count as not tried.
        if among and delivery.attempt == 1 and delivery.place not in seen:
            before = furthest.get(among, (queue, -1))
            if before[0] != queue or offset <= before[1]:
                wrong.append(f"out of order in {among}: {queue}/{offset} came first after {before[0]}/{before[1]}")
            furthest[among] = max(before, delivery.place)
        seen.add(delivery.place)
        # One that was on its way when its lease ended may arrive late; nobody is handed one out that is handled.
        asked = delivery.arrived if delivery.asked is None else delivery.asked
        if handled.get(delivery.place, asked) < asked:
            wrong.append(f"delivered again after its ack was confirmed: {queue}/{offset}")
        if delivery.acknowledged is not None:
            handled.setdefault(delivery.place, delivery.acknowledged)
    wrong += [f"never delivered and handled: {place} {log[place]}" for place in log.keys() - left]
    return wrong


def _judge_leases(deliveries: Sequence[Delivery]) -> list[str]:
    """Each message that two consumers had at a time, and each receipt that was refused before its lease ended.

    Which of two deliveries was handed out first is not known: each has to be under its lease still when the other one
    has arrived.
    """
    wrong = []
    by_place: dict[Place, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        by_place[delivery.place].append(delivery)
        if delivery.refused in LOST and delivery.answered_under_lease and not delivery.repeated:
            wrong.append(f"refused under a live lease: {delivery.place} {delivery.refused}")
    for place, own in by_place.items():
        for first, second in combinations(own, 2):
            latest = max(first.came, second.came)
            if first.held_at(latest) and second.held_at(latest):
                wrong.append(
                    f"delivered twice under live leases: {place}, attempts {first.attempt} and {second.attempt}"
                )
    return wrong


def _name(state: int | None) -> str:
    names: dict[int | None, str] = {
        COMMITTED: "COMMITTED",
        ROLLED_BACK: "ROLLED_BACK",
        PREPARED: "PREPARED",
        PARKED: "PARKED",
    }
    return names.get(state, "unknown to the broker")
