"""Clients that work at a pace, each in a thread: producers and consumers, on the stubs and with the SDKs.

One in four knows one broker only; the others know all, in an order of their own.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

import grpc

from consumer_sdk import BatchReceiptsRefused, Consumer, ConsumerError, ReceiptRefused
from faults.client import TRY_AGAIN_SOON, Client, Fleet, ItemRefused, code_of, message, new_id
from faults.history import Delivery, Entry, History, Operation, Outcome, Place
from faults.many.notes import Notes, Pause
from producer_sdk import BrokerUnavailable, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumer_sdk import HalfmqError, ReceivedMessage
    from faults.answerer import Answerer
    from faults.many.scene import Scene
    from halfmq.v1 import message_pb2

PATIENCE = 6.0
PULL_WAIT = 1.0
LEASE = 5.0
AT_ONCE = 50
REPETITIONS = 3
AGAIN_AFTER = 0.1
LONGEST_DELAY = 3.0
ORDINARY, LEFT_TO_CHECKS, OPEN, ROLLED_BACK = 0.3, 0.2, 0.03, 0.2

Answer = TypeVar("Answer")


class PacedClient(ABC):
    """Something that a client does again and again until it is stopped.

    Attributes:
        error: what ended it.
    """

    what = "client"

    def __init__(self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes) -> None:
        self.fate = random.Random(f"{seed} {type(self).__name__} {number}")
        lone = number % 4 == 0
        self.endpoints = (
            [endpoints[number // 4 % len(endpoints)]] if lone else self.fate.sample(endpoints, len(endpoints))
        )
        self.history = history
        self.notes = notes
        self.pause = Pause(notes, f"{self.what}, {'one broker' if lone else 'all brokers'}")
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._guard, name=f"{self.what}-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs"

    @abstractmethod
    def run(self) -> None:
        """Works until it is to stop."""

    def _guard(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.error = error


class StubProducer(PacedClient):
    """Sends, and prepares transactions, which it commits, rolls back, leaves open, or leaves to checks."""

    what = "producer"

    def __init__(
        self,
        endpoints: Sequence[str],
        number: int,
        seed: int,
        history: History,
        notes: Notes,
        *,
        scene: Scene,
        answerer: Answerer,
        rate: float,
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._scene = scene
        self._answerer = answerer
        self._rate = rate

    def run(self) -> None:
        fleet = Fleet(self.endpoints, PATIENCE)
        while not self.stopping.wait(self.fate.expovariate(self._rate)):
            if self.fate.random() < ORDINARY:
                self._send(fleet)
            else:
                self._transact(fleet)
        fleet.close()

    def _send(self, fleet: Fleet) -> None:
        scene, fate, message_id = self._scene, self.fate, new_id()
        delayed = fate.random() < 1 / 3
        topic = scene.delayed if delayed else scene.choose(fate)
        body = f"{message_id} {fate.random()}".encode()
        ordinary = message(topic, body, message_id=message_id)
        if delayed:
            ordinary.delay.FromMilliseconds(int(1000 * fate.uniform(0.3, LONGEST_DELAY)))
        else:
            ordinary.message_group = scene.message_group(topic, fate)

        def send(client: Client) -> Place | None:
            position = client.send(ordinary)
            return None if delayed else scene.place_of(position)

        began = time.monotonic()
        if self._call(fleet, self.history.begin(message_id, "send", body), send) is Outcome.OK:
            self.notes.sent(time.monotonic() - began)

    def _transact(self, fleet: Fleet) -> None:
        scene, fate, transaction_id = self._scene, self.fate, new_id()
        topic = scene.choose(fate)
        body = f"{transaction_id} {fate.random()}".encode()
        half = message(topic, body, message_group=scene.message_group(topic, fate))
        answerer = self._answerer if fate.random() < LEFT_TO_CHECKS else None
        group, check_after = (scene.asked, 0) if answerer else (scene.producers, 24 * 3600)
        operation = self.history.begin(transaction_id, "prepare", body)
        prepared = self._call(
            fleet, operation, lambda client: _nowhere(client.prepare(group, transaction_id, [half], check_after))
        )
        if answerer:
            answerer.decide(transaction_id, fate, prepared=prepared is Outcome.OK)
        elif prepared is Outcome.OK:
            self._decide(fleet, transaction_id)

    def _decide(self, fleet: Fleet, transaction_id: str) -> None:
        verdict = self.fate.random()
        if verdict < OPEN:
            return
        if verdict < OPEN + ROLLED_BACK:
            operation = self.history.begin(transaction_id, "rollback")
            self._call(fleet, operation, lambda client: _nowhere(client.roll_back(transaction_id)))
            return

        def commit(client: Client) -> Place:
            (position,) = client.commit(transaction_id).released
            return self._scene.place_of(position)

        self._call(fleet, self.history.begin(transaction_id, "commit"), commit)

    def _call(self, fleet: Fleet, operation: Operation, what: Callable[[Client], Place | None]) -> Outcome:
        """Repeats what was not answered a few times; half of the calls are not repeated at all."""
        outcome, place = Outcome.UNKNOWN, None
        for _ in range(1 if self.fate.random() < 0.5 else REPETITIONS):
            self.pause.begin()
            try:
                place, outcome = fleet.call(what), Outcome.OK
            except ItemRefused as refusal:
                outcome = Outcome.UNKNOWN if refusal.code in TRY_AGAIN_SOON else Outcome.FAILED
            except grpc.RpcError as error:
                if code_of(error) not in TRY_AGAIN_SOON:
                    raise
            if outcome is not Outcome.UNKNOWN:
                self.pause.end()
                break
            if self.stopping.wait(AGAIN_AFTER):
                break
        self.history.end(operation, outcome, place)
        return outcome


class SdkProducer(PacedClient):
    """Sends with the SDK, which repeats by itself."""

    what = "SDK producer"

    def __init__(
        self,
        endpoints: Sequence[str],
        number: int,
        seed: int,
        history: History,
        notes: Notes,
        *,
        scene: Scene,
        rate: float,
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._scene = scene
        self._rate = rate

    def run(self) -> None:
        with Producer(self.endpoints) as producer:
            while not self.stopping.wait(self.fate.expovariate(self._rate)):
                self._send(producer)

    def _send(self, producer: Producer) -> None:
        scene, fate, message_id = self._scene, self.fate, new_id()
        topic, body = scene.choose(fate), f"{message_id} {fate.random()}".encode()
        group = scene.message_group(topic, fate) or None
        operation = self.history.begin(message_id, "send", body)
        self.pause.begin()
        began = time.monotonic()
        try:
            sent = producer.send(topic, body, message_group=group, message_id=message_id)
        except BrokerUnavailable:
            self.history.end(operation, Outcome.UNKNOWN)
            return
        self.pause.end()
        self.notes.sent(time.monotonic() - began)
        assert sent.queue is not None, sent
        assert sent.offset is not None, sent
        self.history.end(operation, Outcome.OK, (scene.queue_number(sent.topic, sent.queue), sent.offset))


class StubConsumer(PacedClient):
    """Pulls, and acknowledges what it got."""

    what = "consumer"

    def __init__(
        self,
        endpoints: Sequence[str],
        number: int,
        seed: int,
        history: History,
        notes: Notes,
        *,
        scene: Scene,
        group: str,
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._scene = scene
        self._group = group

    def run(self) -> None:
        fleet = Fleet(self.endpoints, PATIENCE)
        while not self.stopping.is_set():
            self.pause.begin()
            try:
                fleet.call(self._take)
            except grpc.RpcError as error:
                if code_of(error) not in TRY_AGAIN_SOON:
                    raise
                self.stopping.wait(AGAIN_AFTER)
        fleet.close()

    def _take(self, client: Client) -> None:
        asked, until = self.history.moment(), time.monotonic() + LEASE
        pulled = client.pull(self._group, self._scene.groups[self._group], AT_ONCE, wait=PULL_WAIT, lease=LEASE)
        self.pause.end(waited=PULL_WAIT)
        taken = [self._note(each.message, each.attempt, asked, until) for each in pulled]
        if pulled:
            self.history.acknowledge(taken, lambda: client.ack([each.receipt_handle for each in pulled]))

    def _note(self, found: message_pb2.LogMessage, attempt: int, asked: int, until: float) -> Delivery:
        if attempt == 1:
            late = time.time() - found.stored_at.ToMicroseconds() / 1e6
            self.notes.delivered(kind_of(self.what, found.message_group), late)
        entry = Entry(found.transaction_id, found.body)
        return self.history.deliver(self._scene.place_of(found), entry, attempt, found.message_group, asked, until)


class SdkConsumer(PacedClient):
    """Receives from the SDK's stream, and acknowledges what it got."""

    what = "SDK consumer"

    def __init__(
        self,
        endpoints: Sequence[str],
        number: int,
        seed: int,
        history: History,
        notes: Notes,
        *,
        scene: Scene,
        group: str,
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._scene = scene
        self._group = group

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._consume()
            except BrokerUnavailable:
                # The only broker that it knows was frozen when it began; its application is started again.
                self.stopping.wait(AGAIN_AFTER)

    def _consume(self) -> None:
        scene, asked = self._scene, self.history.moment()
        with Consumer(
            self.endpoints, self._group, scene.groups[self._group], prefetch=AT_ONCE, lease_duration=LEASE
        ) as own:
            while not self.stopping.is_set():
                received = own.receive(AT_ONCE, timeout=PULL_WAIT)
                taken: list[Delivery] = []
                for each in received:
                    if each.attempt == 1:
                        late = time.time() - each.stored_at.timestamp()
                        self.notes.delivered(kind_of(self.what, each.message_group), late)
                    place = scene.queue_number(each.topic, each.queue), each.offset
                    entry = Entry(each.transaction_id, each.body)
                    group, until = each.message_group or "", _end_of_lease(each)
                    taken.append(self.history.deliver(place, entry, each.attempt, group, asked, until))
                self.history.leave(taken, repeated=True)
                try:
                    own.ack(received)
                except BatchReceiptsRefused as refusal:
                    self._note_refusals(received, taken, refusal.refused)
                except ReceiptRefused as refusal:
                    self._note_refusals(received, taken, [refusal])
                except (ConsumerError, BrokerUnavailable):
                    continue  # Some are acknowledged, and nobody knows which.
                else:
                    for delivery in taken:
                        self.history.confirm(delivery)

    def _note_refusals(
        self, received: Sequence[ReceivedMessage], taken: Sequence[Delivery], errors: Sequence[HalfmqError]
    ) -> None:
        """Of one ack; those that are not refused are acknowledged, unless there are some of which nobody knows."""
        refused = {error.receipt_handle: error.reason for error in errors if isinstance(error, ReceiptRefused)}
        for each, delivery in zip(received, taken, strict=True):
            if each.receipt_handle in refused:
                self.history.refuse(delivery, refused[each.receipt_handle])
            elif len(refused) == len(errors):
                self.history.confirm(delivery)


def kind_of(what: str, message_group: str | None) -> str:
    """What deliveries are told apart by."""
    return f"{what}, {'message groups' if message_group else 'others'}"


def _end_of_lease(received: ReceivedMessage) -> float:
    """Until when it lasts, on this machine's monotonic clock; the SDK extends it. The database is on this machine."""
    return time.monotonic() + received._delivery.lease_expires_at.ToMicroseconds() / 1e6 - time.time()


def _nowhere(_: object) -> None:
    """Of an answer that names no place."""
