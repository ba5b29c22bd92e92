"""Clients that send, prepare, commit, roll back and leave open, and a consumer, all of whom keep a History.

Some transactions can be left to the brokers' checks; a live producer answers those.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Self

import grpc

from faults.answerer import Answerer
from faults.client import (
    PATIENCE,
    PREPARED,
    TRY_AGAIN,
    TRY_AGAIN_SOON,
    Client,
    Fleet,
    ItemRefused,
    code_of,
    message,
    new_id,
    unique,
)
from faults.history import Delivery, Entry, Findings, History, Operation, Outcome, Place, Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from halfmq.v1 import message_pb2, transaction_pb2

TASKS = 4
SENT = 0.15
LEFT_TO_CHECKS = 0.2
# Settings of brokers that are to check what is left to them, soon and often.
MAX_CHECKS = 5
CHECKS = {"first_check": 0.1, "check_interval": 0.3, "max_checks": MAX_CHECKS}
LEASE = 2.0
# Calls that get no answer are repeated this often, so that most become known in the end; the rest stays unknown.
REPETITIONS = 3
PAUSE = 0.05


class Load:
    """A context manager: inside of it the clients are at work; behind it they have stopped, the consumer has not.

    Nor has the producer that answers checks, with `checked`; the brokers must then have the settings CHECKS.
    `rivals` is the part of the calls that two brokers get at the same time, `patience` is how long a call waits. Only
    with `unknown_places` a broker may tell that a message is stored, and not where.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tasks: int = TASKS,
        seed: int | None = None,
        checked: bool = False,
        rivals: float = 0.0,
        patience: float = PATIENCE,
        unknown_places: bool = False,
    ) -> None:
        self.history = History()
        self.seed = random.randrange(1 << 30) if seed is None else seed
        self.codes: set[grpc.StatusCode] = set()
        self.errors: list[BaseException] = []
        self.contradictions: list[str] = []
        self._rivals = rivals
        self._unknown_places = unknown_places
        self._patience = patience
        self._try_again = TRY_AGAIN if patience >= PATIENCE else TRY_AGAIN_SOON
        self._endpoints = list(endpoints)
        self._producing = threading.Event()
        self._consuming = threading.Event()
        with Client(self._endpoints[0]) as client:
            self.topic = client.make_topic(queues=2)
            self.group = client.make_group()
        self.producers = unique("producers")
        self.answerer = Answerer(endpoints, unique("asked"), self.history, self._place) if checked else None
        self._tasks = [
            threading.Thread(target=self._guard, args=(self._produce, number), name=f"producer-{number}", daemon=True)
            for number in range(tasks)
        ]
        self._consumer = threading.Thread(target=self._guard, args=(self._consume, 0), name="consumer", daemon=True)

    def __enter__(self) -> Self:
        for thread in (*self._tasks, self._consumer):
            thread.start()
        if self.answerer:
            self.answerer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_producing()
        if error is not None:
            self.stop_consuming()
            self.stop_answering()

    def stop_producing(self) -> None:
        """Lets the calls under way end, and makes no further ones."""
        self._producing.set()
        for task in self._tasks:
            task.join(120)
            assert not task.is_alive(), f"{task.name} hangs"

    def stop_consuming(self) -> None:
        self._consuming.set()
        self._consumer.join(120)
        assert not self._consumer.is_alive(), "the consumer hangs"

    def stop_answering(self) -> None:
        if self.answerer:
            self.answerer.stop()
            self.errors += self.answerer.errors

    def finish(self, client: Client) -> Findings:
        """Consumes what is left, has all checks answered, stops, and looks at everything there is to see."""
        self.stop_consuming()
        while self.answerer and client.undecided(self.answerer.group, PREPARED):
            assert not self.answerer.errors, self.answerer.errors
            self._take(client, wait=0.2)
        self.stop_answering()
        while any(each.lag for each in client.offsets(self.topic, self.group)):
            self._take(client, wait=LEASE * 2)
        assert not self.errors, self.errors
        return self.findings(client)

    def findings(self, client: Client) -> Findings:
        """What the broker has and knows now."""
        known = {transaction_id: _find(client, transaction_id) for transaction_id in self.history.bodies}
        states = {transaction_id: found and found.state for transaction_id, found in known.items()}
        checks = {
            transaction_id: Spent(found.check_count, [check.check_number for check in found.checks])
            for transaction_id, found in known.items()
            if found and found.check_count
        }
        log = {
            queue: [(each.offset, _entry(each)) for each in entries]
            for queue, entries in client.log(self.topic).items()
        }
        heads = {each.queue: each.max_offset for each in client.offsets(self.topic)}
        return Findings(states, log, heads, checks, MAX_CHECKS if self.answerer else 0)

    def _guard(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self, number: int) -> None:
        turn = number % len(self._endpoints)
        fleet = Fleet(self._endpoints[turn:] + self._endpoints[:turn], self._patience)
        fate = random.Random(self.seed + number)
        while not self._producing.is_set():
            self._transact(fleet, fate)
        fleet.close()

    def _transact(self, fleet: Fleet, fate: random.Random) -> None:
        transaction_id = new_id()
        body = f"{transaction_id} {fate.random()}".encode()
        fields = {"message_group": "one" if fate.random() < 0.3 else ""}
        kind = fate.random()
        if kind < SENT:
            self._send(fleet, fate, message(self.topic, body, message_id=transaction_id, **fields))
            return
        answerer = self.answerer if kind < SENT + LEFT_TO_CHECKS else None
        half = message(self.topic, body, **fields)
        group, check_after = (answerer.group, 0) if answerer else (self.producers, 3600)

        def prepare(client: Client) -> None:
            client.prepare(group, transaction_id, [half], check_after)

        prepared = self._call(fleet, self.history.begin(transaction_id, "prepare", body), fate, prepare)
        if answerer:
            answerer.decide(transaction_id, fate, prepared=prepared is Outcome.OK)
        elif prepared is Outcome.OK:
            self._decide(fleet, fate, transaction_id)

    def _send(self, fleet: Fleet, fate: random.Random, ordinary: message_pb2.Message) -> None:
        def send(client: Client) -> Place | None:
            return self._place(client.send(ordinary))

        self._call(fleet, self.history.begin(ordinary.message_id, "send", ordinary.body), fate, send)

    def _decide(self, fleet: Fleet, fate: random.Random, transaction_id: str) -> None:
        def roll_back(client: Client) -> None:
            client.roll_back(transaction_id)

        def commit(client: Client) -> Place | None:
            (place,) = client.commit(transaction_id).released
            return self._place(place)

        verdict = fate.random()
        if verdict < 0.2:
            return
        if verdict < 0.4:
            self._call(fleet, self.history.begin(transaction_id, "rollback"), fate, roll_back)
        else:
            self._call(fleet, self.history.begin(transaction_id, "commit"), fate, commit)

    def _place(self, told: message_pb2.LogPosition) -> Place | None:
        return place_of(told, may_be_unknown=self._unknown_places)

    def _call(
        self, fleet: Fleet, operation: Operation, fate: random.Random, what: Callable[[Client], Place | None]
    ) -> Outcome:
        outcome = Outcome.UNKNOWN
        place: Place | None = None
        # Half of the clients give up at the first call without an answer; what became of it they never learn.
        for _ in range(1 if fate.random() < 0.5 else REPETITIONS):
            try:
                place = self._at_two(fleet, operation, what) if fate.random() < self._rivals else fleet.call(what)
                outcome = Outcome.OK
                break
            except ItemRefused as refusal:
                if refusal.code not in self._try_again:
                    outcome = Outcome.FAILED
                    break
                self.codes.add(refusal.code)
            except grpc.RpcError as error:
                self.codes.add(code_of(error))
                if code_of(error) not in self._try_again:
                    raise
            # As real clients do, and so that an outage is not a flood of calls without an answer.
            if self._producing.wait(PAUSE):
                break
        self.history.end(operation, outcome, place)
        return outcome

    def _at_two(self, fleet: Fleet, operation: Operation, what: Callable[[Client], Place | None]) -> Place | None:
        """Two brokers get the same call at the same time; what the one said that answered."""
        answers: list[Place | None] = []
        failures: list[Exception] = []

        def ask(client: Client) -> None:
            try:
                answers.append(what(client))
            except (ItemRefused, grpc.RpcError) as error:
                failures.append(error)

        asking = [threading.Thread(target=ask, args=(client,)) for client in fleet.rivals]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        refusals = [
            each
            for each in failures
            if isinstance(each, ItemRefused)
            and each.code not in self._try_again
            and not _came_too_late(operation, each)
        ]
        if len(set(answers) - {None}) > 1 or (answers and refusals):
            self.contradictions.append(
                f"{operation.transaction_id}: two brokers answered one {operation.call} by {answers} and {refusals}"
            )
        if answers:
            return next((place for place in answers if place is not None), None)
        raise failures[0]

    def _consume(self, _: int) -> None:
        fleet = Fleet(self._endpoints, self._patience)
        while not self._consuming.is_set():
            try:
                fleet.call(lambda client: self._take(client, wait=0.2))
            except grpc.RpcError as error:
                self.codes.add(code_of(error))
                if code_of(error) not in self._try_again:
                    raise
                self._consuming.wait(PAUSE)
        fleet.close()

    def _take(self, client: Client, wait: float) -> None:
        until = time.monotonic() + LEASE
        pulled = client.pull(self.group, self.topic, 100, wait=wait, lease=LEASE)
        taken: list[Delivery] = [
            self.history.deliver(
                (each.message.queue, each.message.offset),
                _entry(each.message),
                each.attempt,
                each.message.message_group,
                until=until,
            )
            for each in pulled
        ]
        if pulled:
            self.history.acknowledge(taken, lambda: client.ack([each.receipt_handle for each in pulled]))


def _came_too_late(operation: Operation, refusal: ItemRefused) -> bool:
    """Whether a broker got a Prepare when a check had decided the transaction, or the last one had gone by."""
    return operation.call == "prepare" and refusal.reason == "VERDICT_CONFLICT"


def place_of(told: message_pb2.LogPosition, *, may_be_unknown: bool) -> Place | None:
    """Where a message is; None: the broker knew only that it is stored, as its topic was moving, and may do so.

    Otherwise that is a place where no message is.
    """
    return None if told.offset < 0 and may_be_unknown else (told.queue, told.offset)


def _entry(found: message_pb2.LogMessage) -> Entry:
    return Entry(found.transaction_id, found.body)


def _find(client: Client, transaction_id: str) -> transaction_pb2.Transaction | None:
    try:
        return client.transaction(transaction_id)
    except grpc.RpcError as error:
        if code_of(error) is not grpc.StatusCode.NOT_FOUND:
            raise
        return None
