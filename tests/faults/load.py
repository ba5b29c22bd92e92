"""Clients that prepare, commit, roll back and leave open, and a consumer, all of whom keep a History."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Self

import grpc

from faults.client import (
    Client,
    Fleet,
    ItemRefused,
    code_of,
    message,
    new_id,
    unique,
)
from faults.history import Delivery, Entry, Findings, History, Operation, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from halfmq.v1 import message_pb2

TASKS = 4
LEASE = 2.0
# Calls that get no answer are repeated this often, so that most become known in the end; the rest stays unknown.
REPETITIONS = 3
PAUSE = 0.05
_TRY_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}


class Load:
    """A context manager: inside of it the clients are at work; behind it they have stopped, the consumer has not."""

    def __init__(self, endpoints: Sequence[str], *, tasks: int = TASKS, seed: int | None = None) -> None:
        self.history = History()
        self.seed = random.randrange(1 << 30) if seed is None else seed
        self.codes: set[grpc.StatusCode] = set()
        self.errors: list[BaseException] = []
        self._endpoints = list(endpoints)
        self._producing = threading.Event()
        self._consuming = threading.Event()
        with Client(self._endpoints[0]) as client:
            self.topic = client.make_topic(queues=2)
            self.group = client.make_group()
        self.producers = unique("producers")
        self._tasks = [
            threading.Thread(target=self._guard, args=(self._produce, number), name=f"producer-{number}", daemon=True)
            for number in range(tasks)
        ]
        self._consumer = threading.Thread(target=self._guard, args=(self._consume, 0), name="consumer", daemon=True)

    def __enter__(self) -> Self:
        for thread in (*self._tasks, self._consumer):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_producing()
        if error is not None:
            self.stop_consuming()

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

    def finish(self, client: Client) -> Findings:
        """Consumes what is left, stops, and looks at everything there is to see."""
        self.stop_consuming()
        while any(each.lag for each in client.offsets(self.topic, self.group)):
            self._take(client, wait=LEASE * 2)
        assert not self.errors, self.errors
        return self.findings(client)

    def findings(self, client: Client) -> Findings:
        """What the broker has and knows now."""
        states = {transaction_id: _state(client, transaction_id) for transaction_id in self.history.bodies}
        log = {
            queue: [(each.offset, _entry(each)) for each in entries]
            for queue, entries in client.log(self.topic).items()
        }
        heads = {each.queue: each.max_offset for each in client.offsets(self.topic)}
        return Findings(states, log, heads)

    def _guard(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self, number: int) -> None:
        fleet = Fleet(
            self._endpoints[number % len(self._endpoints) :] + self._endpoints[: number % len(self._endpoints)]
        )
        fate = random.Random(self.seed + number)
        while not self._producing.is_set():
            self._transact(fleet, fate)
        fleet.close()

    def _transact(self, fleet: Fleet, fate: random.Random) -> None:
        transaction_id = new_id()
        body = f"{transaction_id} {fate.random()}".encode()
        half = message(self.topic, body, message_group="one" if fate.random() < 0.3 else "")
        prepare = self.history.begin(transaction_id, "prepare", body)
        self._call(
            fleet,
            prepare,
            fate,
            lambda client: client.prepare(self.producers, transaction_id, [half], check_after=3600),
        )
        verdict = fate.random()
        if prepare.outcome is not Outcome.OK or verdict < 0.2:
            return
        if verdict < 0.4:
            call = self.history.begin(transaction_id, "rollback")
            self._call(fleet, call, fate, lambda client: client.roll_back(transaction_id))
        else:
            call = self.history.begin(transaction_id, "commit")
            self._call(fleet, call, fate, lambda client: client.commit(transaction_id))

    def _call(self, fleet: Fleet, operation: Operation, fate: random.Random, what: Callable[[Client], object]) -> None:
        outcome = Outcome.UNKNOWN
        # Half of the clients give up at the first call without an answer; what became of it they never learn.
        for _ in range(1 if fate.random() < 0.5 else REPETITIONS):
            try:
                fleet.call(what)
                outcome = Outcome.OK
                break
            except ItemRefused:
                outcome = Outcome.FAILED
                break
            except grpc.RpcError as error:
                self.codes.add(code_of(error))
                if code_of(error) not in _TRY_AGAIN:
                    raise
            # As real clients do, and so that an outage is not a flood of calls without an answer.
            if self._producing.wait(PAUSE):
                break
        self.history.end(operation, outcome)

    def _consume(self, _: int) -> None:
        fleet = Fleet(self._endpoints)
        while not self._consuming.is_set():
            try:
                fleet.call(lambda client: self._take(client, wait=0.2))
            except grpc.RpcError as error:
                self.codes.add(code_of(error))
                if code_of(error) not in _TRY_AGAIN:
                    raise
                self._consuming.wait(PAUSE)
        fleet.close()

    def _take(self, client: Client, wait: float) -> None:
        pulled = client.pull(self.group, self.topic, 100, wait=wait, lease=LEASE)
        taken: list[Delivery] = [
            self.history.deliver((each.message.queue, each.message.offset), _entry(each.message), each.attempt)
            for each in pulled
        ]
        if not pulled:
            return
        for delivery in taken:
            delivery.acknowledging = True
        results = client.ack([each.receipt_handle for each in pulled])
        for delivery, result in zip(taken, results, strict=True):
            if not result.HasField("error"):
                delivery.acknowledged = self.history.moment()


def _entry(found: message_pb2.LogMessage) -> Entry:
    return Entry(found.transaction_id, found.body)


def _state(client: Client, transaction_id: str) -> int | None:
    try:
        return client.transaction(transaction_id).state
    except grpc.RpcError as error:
        if code_of(error) is not grpc.StatusCode.NOT_FOUND:
            raise
        return None
