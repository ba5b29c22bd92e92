"""What is in the log and what became of transactions, noted before retention deletes it; and when it deletes.

The judge of histories wants all of the log and the state of every transaction in the end. Here they are looked at all
the time, and kept.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import grpc

from faults.client import COMMITTED, ROLLED_BACK, Client, code_of
from faults.history import Entry, Findings, Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from faults.history import History
    from halfmq.v1 import transaction_pb2

EVERY = 0.5
FIRST_LOOK, LONGEST_WAIT = 1.0, 8.0
"""Seconds from the preparation to the first look at a transaction without a verdict, and between two at most."""
CLOCKS = 0.5
"""Seconds by which the test may be late or early at noticing that messages were deleted."""


class Seen(NamedTuple):
    """A message that was read, and when it became visible (seconds)."""

    entry: Entry
    stored_at: float
    properties: Mapping[str, str]


@dataclass(slots=True)
class _Queue:
    """What was read of a queue; all of it below `min_offset` is deleted by now."""

    seen: list[Seen] = field(default_factory=list)
    min_offset: int = 0
    end: int = 0


@dataclass(slots=True)
class _Open:
    """A transaction that was first known at a time (seconds), and is looked at again at another one."""

    since: float
    at: float
    pause: float = FIRST_LOOK


class Ledger:
    """A thread of its own that reads.

    Attributes:
        wrong: what was deleted too early, or too late.
        latest: by how much messages outlived their retention, in seconds, at most.
        late: transactions that may have expired before they were looked at: the machine stood still.
        error: what ended it.
    """

    def __init__(
        self,
        endpoint: str,
        topics: Sequence[str],
        number_of: Callable[[str, int], int],
        history: History | None,
        kept: float,
        patience: float,
    ) -> None:
        """Takes topics with the numbers of their queues, what producers note, and how long messages are kept.

        Messages may outlive that by `patience` seconds.
        """
        self.wrong: list[str] = []
        self.latest = 0.0
        self.late: set[str] = set()
        self.error: BaseException | None = None
        self._endpoint = endpoint
        self._topics = topics
        self._number_of = number_of
        self._history = history
        self._kept = kept
        self._patience = patience
        self._queues: dict[int, _Queue] = {}
        self._known = 0
        self._open: dict[str, _Open] = {}
        self._found: dict[str, transaction_pb2.Transaction | None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guard, name="ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Has it read what there is, and ends it."""
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the ledger hangs"

    def ends(self) -> dict[int, int]:
        """Up to where each queue was read."""
        return {number: len(queue.seen) for number, queue in list(self._queues.items())}

    def seen(self, number: int) -> Sequence[Seen]:
        """What was read of a queue."""
        return self._queues[number].seen if number in self._queues else []

    def findings(self, max_checks: int, delayed: Collection[int] = ()) -> Findings:
        """For the judges."""
        log = {number: [(n, each.entry) for n, each in enumerate(own.seen)] for number, own in self._queues.items()}
        heads = {number: own.end for number, own in self._queues.items()}
        checks = {
            each: Spent(found.check_count, [check.check_number for check in found.checks])
            for each, found in self._found.items()
            if found and found.check_count
        }
        states = {each: found and found.state for each, found in self._found.items()}
        return Findings(states, log, heads, checks, max_checks, delayed)

    def judged(self, wrong: Iterable[str]) -> list[str]:
        """What contradicts something of transactions that were looked at in time."""
        return [each for each in wrong if each.split(" ", 1)[0] not in self.late]

    def _guard(self) -> None:
        try:
            with Client(self._endpoint) as client:
                while not self._stopping.wait(EVERY):
                    self._look(client, all_of_it=False)
                self._look(client, all_of_it=True)
        except BaseException as error:
            self.error = error

    def _look(self, client: Client, *, all_of_it: bool) -> None:
        for topic in self._topics:
            self._read(client, topic)
        if self._history is not None:
            self._ask(client, self._history, all_of_it=all_of_it)

    def _read(self, client: Client, topic: str) -> None:
        began = time.time()
        for place in client.offsets(topic):
            number = self._number_of(topic, place.queue)
            own = self._queues.setdefault(number, _Queue())
            if place.min_offset > len(own.seen):
                self.wrong.append(f"{number}/{len(own.seen)} was deleted before it could be read")
                return
            while len(own.seen) < place.max_offset:
                found = client.read(topic, place.queue, len(own.seen))
                if not found or found[0].offset != len(own.seen):
                    self.wrong.append(f"{number}/{len(own.seen)} is missing below {place.max_offset}")
                    return
                for each in found:
                    entry = Entry(each.transaction_id, each.body)
                    own.seen.append(Seen(entry, each.stored_at.ToMicroseconds() / 1e6, dict(each.properties)))
            own.end = len(own.seen)
            self._judge_retention(number, own, place.min_offset, began)

    def _judge_retention(self, number: int, own: _Queue, min_offset: int, now: float) -> None:
        """Nothing is deleted before its time, and all is soon after it."""
        if min_offset > own.min_offset:
            age = time.time() - own.seen[min_offset - 1].stored_at
            if age < self._kept - CLOCKS:
                self.wrong.append(f"{number}/{min_offset - 1} was deleted after {age:.1f} s, not {self._kept:.1f}")
            own.min_offset = min_offset
        if min_offset < len(own.seen):
            late = now - own.seen[min_offset].stored_at - self._kept
            self.latest = max(self.latest, late)
            if late > self._patience:
                self.wrong.append(f"{number}/{min_offset} is there {late:.1f} s after its retention")

    def _ask(self, client: Client, history: History, *, all_of_it: bool) -> None:
        """Looks at transactions: at those without a verdict more and more seldom."""
        ids = list(history.bodies)
        now = time.monotonic()
        for each in ids[self._known :]:
            self._open[each] = _Open(now, now + FIRST_LOOK)
        self._known = len(ids)
        for transaction_id, own in list(self._open.items()):
            if own.at > now and not all_of_it:
                continue
            found = _find(client, transaction_id)
            self._found[transaction_id] = found
            if found is None and time.monotonic() - own.since > self._kept / 2:
                self.late.add(transaction_id)
                del self._open[transaction_id]
                continue
            if found is not None and found.state in {COMMITTED, ROLLED_BACK}:
                del self._open[transaction_id]
                continue
            own.pause = min(2 * own.pause, LONGEST_WAIT, self._kept / 4)
            own.at = now + own.pause


def _find(client: Client, transaction_id: str) -> transaction_pb2.Transaction | None:
    try:
        return client.transaction(transaction_id)
    except grpc.RpcError as error:
        if code_of(error) is not grpc.StatusCode.NOT_FOUND:
            raise
        return None
