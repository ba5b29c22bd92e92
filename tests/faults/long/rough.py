"""A topic whose consumers refuse messages, extend leases, and die with messages in their hands; and what heals that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from faults.client import Client, Fleet, message, new_id, unique
from faults.history import Entry, Outcome, judge_calls, judge_deliveries
from faults.long.day import PATIENCE
from faults.long.ledger import Ledger
from faults.many.clients import PULL_WAIT, PacedClient
from producer_sdk import Admin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.history import Delivery, History, Place
    from faults.long.day import Day
    from faults.many.notes import Notes

TOGETHER = 5
LEASE = 2.0
REFUSED, EXTENDED, KILLED = 0.1, 0.1, 0.05
"""Of the pulls of a consumer."""
ATTEMPTS = 2
QUEUES = 2
TENDED_EVERY = 2.0
REPEATED = 0.1
"""Of the sends."""


class Rough:
    """The topic, a group that is to handle all of it, its dead letters, and a group that is moved back and forth.

    Attributes:
        dead: reads the dead letters before they are purged or expire.
    """

    def __init__(self, endpoint: str, day: Day, history: History, patience: float) -> None:
        self.topic, self.group, self.seekers = unique("rough"), unique("rough"), unique("seekers")
        self._history = history
        with Admin(endpoint) as admin:
            admin.create_topic(self.topic, queues=QUEUES, dedup_window=day.history)
            admin.create_group(self.group, max_attempts=ATTEMPTS, retry_delays=[0.1])
            admin.create_group(self.seekers)
        self.log = Ledger(endpoint, [self.topic], lambda _, queue: queue, history, day.kept, patience)
        self.dead = Ledger(endpoint, [f"%DLQ%{self.group}"], lambda _, queue: queue, None, 0.0, float("inf"))

    def place_of(self, queue: int, offset: int) -> Place:
        return queue, offset

    def judge(self, received: History, moved: History) -> list[str]:
        """What contradicts the log: each message was handled, or is a dead letter."""
        found = self.log.findings(max_checks=0)
        letters = {
            (int(each.properties["halfmq.origin-queue"]), int(each.properties["halfmq.origin-offset"]))
            for each in self.dead.seen(0)
        }
        for delivery in received.deliveries:
            delivery.acknowledging = delivery.acknowledging or delivery.place in letters
        log = {(queue, offset): entry for queue, entries in found.log.items() for offset, entry in entries}
        return [
            *self.log.judged(judge_calls(self._history, found)),
            *judge_deliveries(received.deliveries, found),
            *[
                f"delivered to those that were moved, but not in the log: {each.place}"
                for each in moved.deliveries
                if log.get(each.place) != each.entry
            ],
            *[f"{ledger_error!r} ended a ledger" for ledger_error in (self.log.error, self.dead.error) if ledger_error],
            *self.log.wrong,
            *[each for each in self.dead.wrong if "was deleted after" not in each],
        ]


class RoughProducer(PacedClient):
    """Sends batches with keys, tags, properties and deduplication keys; some of them twice."""

    what = "producer of batches"

    def __init__(
        self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes, *, rough: Rough
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._rough = rough

    def run(self) -> None:
        fleet = Fleet(self.endpoints, PATIENCE, waits=True)
        while not self.stopping.wait(self.fate.expovariate(1.0)):
            ids = [new_id() for _ in range(TOGETHER)]
            for _ in range(2 if self.fate.random() < REPEATED else 1):
                fleet.call(partial(self._send, ids=ids))
        fleet.close()

    def _send(self, client: Client, ids: Sequence[str]) -> None:
        operations = [self.history.begin(each, "send", f"{each} {n}".encode()) for n, each in enumerate(ids)]
        messages = [
            message(
                self._rough.topic,
                self.history.bodies[each],
                message_id=each,
                tag="even" if number % 2 else "odd",
                keys=[f"key-{each[:6]}"],
                properties={"number": str(number)},
                dedup_key=each,
            )
            for number, each in enumerate(ids)
        ]
        for operation, result in zip(operations, client.send_each(messages), strict=True):
            if result.HasField("error"):
                self.history.end(operation, Outcome.FAILED)
            else:
                self.history.end(operation, Outcome.OK, (result.position.queue, result.position.offset))


class RoughConsumer(PacedClient):
    """Handles most messages, refuses some, needs long for some, and is gone with some in its hands."""

    what = "rough consumer"

    def __init__(
        self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes, *, rough: Rough
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._rough = rough

    def run(self) -> None:
        fleet = Fleet(self.endpoints, PATIENCE, waits=True)
        while not self.stopping.is_set():
            fleet.call(self._take)
        fleet.close()

    def _take(self, client: Client) -> None:
        asked = self.history.moment()
        pulled = client.pull(self._rough.group, self._rough.topic, 20, wait=PULL_WAIT, lease=LEASE)
        taken = [
            self.history.deliver(
                (each.message.queue, each.message.offset),
                Entry(each.message.transaction_id, each.message.body),
                each.attempt,
                each.message.message_group,
                asked,
            )
            for each in pulled
        ]
        handles = [each.receipt_handle for each in pulled]
        chance = self.fate.random()
        if not pulled or chance < KILLED:
            return
        if chance < KILLED + REFUSED:
            client.nack(handles, "not now")
            return
        if chance < KILLED + REFUSED + EXTENDED:
            client.extend(handles, 2 * LEASE)
        _acknowledge(client, self.history, handles, taken)


def _acknowledge(client: Client, history: History, handles: Sequence[str], taken: Sequence[Delivery]) -> None:
    for delivery in taken:
        delivery.acknowledging = True
    for delivery, result in zip(taken, client.ack(handles), strict=True):
        if not result.HasField("error"):
            delivery.acknowledged = history.moment()


class MovedConsumer(RoughConsumer):
    """A consumer of the group that is moved."""

    what = "moved consumer"

    def _take(self, client: Client) -> None:
        pulled = client.pull(self._rough.seekers, self._rough.topic, 50, wait=PULL_WAIT, lease=LEASE)
        for each in pulled:
            place = each.message.queue, each.message.offset
            self.history.deliver(place, Entry(each.message.transaction_id, each.message.body), each.attempt)
        if pulled:
            client.ack([each.receipt_handle for each in pulled])


class Tender(PacedClient):
    """Redrives and purges dead letters, moves the other group back and forth, and pauses it."""

    what = "tender"

    def __init__(
        self,
        endpoints: Sequence[str],
        number: int,
        seed: int,
        history: History,
        notes: Notes,
        *,
        rough: Rough,
        kept: float,
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._rough = rough
        self._kept = kept
        self.redriven = self.purged = self.moved = 0

    def run(self) -> None:
        rough = self._rough
        with Admin(self.endpoints) as admin:
            while not self.stopping.wait(TENDED_EVERY):
                for progress in admin.redrive(rough.group):
                    redriven = progress.redriven
                self.redriven += redriven
                # Those that were read.
                for purge in admin.purge_dead_letters(rough.group, before_offset=rough.dead.ends().get(0, 0) // 2):
                    purged = purge.deleted
                self.purged += purged
                then = datetime.now(UTC) - timedelta(seconds=self.fate.uniform(0, self._kept))
                admin.seek_group(rough.seekers, rough.topic, self.fate.choice(["earliest", "latest", then]))
                self.moved += 1
                admin.pause_group(rough.seekers, "the press is being repaired")
                admin.set_filter(rough.seekers, rough.topic, None)
                admin.resume_group(rough.seekers)
