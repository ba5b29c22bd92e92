"""What a broker tells an observer of its work."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from broker.embedded import EmbeddedBroker
from broker.ports.observer import Observer
from consumer_sdk import Consumer, SubscriptionRefused
from producer_sdk import (
    LocalTransactionState,
    Message,
    Producer,
    RequestRefused,
    TransactionListener,
    TransactionProducer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENOUGH = 30.0


class Recorder(Observer):
    """Keeps what it is told."""

    __slots__ = ("_lock", "told")

    def __init__(self) -> None:
        self.told: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._lock = threading.Lock()

    def _note(self, kind: str, *what: Any) -> None:
        with self._lock:
            self.told[kind].append(what)

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        self._note("call", method.rpartition("/")[2], code, seconds)

    def batch_ended(self, lane: str, items: int, seconds: float, error: Exception | None) -> None:
        self._note("batch", lane, items, seconds, error)

    def round_ended(self, loop: str, seconds: float, error: Exception | None) -> None:
        self._note("round", loop, seconds, error)

    def check_sent(self, group_id: int, client_id: str | None) -> None:
        self._note("sent", group_id, client_id)

    def check_answered(self, verdict: str) -> None:
        self._note("answered", verdict)

    def batch_started(self, lane: str, waited: float) -> None:
        self._note("started", lane, waited)

    def database_answered(self, kind: str, seconds: float) -> None:
        self._note("database", kind, seconds)

    def database_failed(self, kind: str) -> None:
        self._note("failure", kind)

    def check_unanswered(self, group_id: int) -> None:
        self._note("unanswered", group_id)

    def messages_stored(self, topic: str, kind: str, sizes: Sequence[int]) -> None:
        self._note("stored", topic, kind, list(sizes))

    def items_refused(self, reason: str, count: int) -> None:
        self._note("refused", reason, count)

    def transaction_decided(self, group_id: int, verdict: str, source: str, halves: int, seconds: float) -> None:
        self._note("decided", group_id, verdict, source, halves, seconds)

    def messages_released(self, seconds: float) -> None:
        self._note("released", seconds)

    def messages_delivered(self, group: str, topic: str, count: int, size: int, attempt: int, seconds: float) -> None:
        self._note("delivered", group, topic, count, size, attempt, seconds)

    def until(self, kind: str, holds: Callable[[tuple[Any, ...]], bool]) -> tuple[Any, ...]:
        """The first of a kind for which something holds."""
        deadline = time.monotonic() + ENOUGH
        while time.monotonic() < deadline:
            with self._lock:
                found = [each for each in self.told[kind] if holds(each)]
            if found:
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"no such {kind}: {self.told[kind]}")


class Commits(TransactionListener):
    """Says nothing at first, and commits when asked."""

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_calls_are_told_with_their_codes(recorder: Recorder) -> None:
    with EmbeddedBroker(observer=recorder, auto_create=False) as broker, Producer(broker.endpoint) as producer:
        with pytest.raises(RequestRefused):
            producer.send("orders", "x")
        assert recorder.until("call", lambda call: call[0] == "Send")[1] == "OK", "refused as an item"
        with pytest.raises(SubscriptionRefused), Consumer(broker.endpoint, "g", "orders") as consumer:
            consumer.wait_until_subscribed(ENOUGH)
        method, code, seconds = recorder.until("call", lambda call: call[0] == "Consume" and call[1] != "OK")
        assert (method, code) == ("Consume", "NOT_FOUND")
        assert seconds >= 0


def test_batches_and_rounds_are_told_by_name(recorder: Recorder) -> None:
    with EmbeddedBroker(observer=recorder) as broker, Producer(broker.endpoint) as producer:
        producer.send_many([Message("orders", "a"), Message("orders", "b")])
        _, items, seconds, error = recorder.until("batch", lambda batch: batch[0] == "send")
        assert (items, error) == (2, None)
        assert seconds > 0
        assert recorder.until("round", lambda round_: round_[0] == "retention")[2] is None


def test_checks_are_told(recorder: Recorder) -> None:
    with (
        EmbeddedBroker(observer=recorder, first_check=0.1, check_interval=0.2) as broker,
        TransactionProducer(broker.endpoint, "shop", Commits(), client_id="shop-1") as producer,
    ):
        producer.send_in_transaction(Message("orders", "x"))
        assert recorder.until("sent", lambda sent: True)[1] == "shop-1"
        assert recorder.until("answered", lambda answered: True) == ("COMMIT",)


def test_messages_are_told_where_they_come_and_where_they_go(recorder: Recorder) -> None:
    with (
        EmbeddedBroker(observer=recorder) as broker,
        Producer(broker.endpoint) as producer,
        TransactionProducer(broker.endpoint, "shop", Commits()) as transactions,
        Consumer(broker.endpoint, "shipping", "orders") as consumer,
    ):
        producer.send_many([Message("orders", "a"), Message("orders", "bc"), Message("orders", "d", message_group="g")])
        producer.send("orders", "later", delay=3600)
        assert recorder.until("stored", lambda stored: stored[1] == "normal") == ("orders", "normal", [1, 2])
        assert recorder.until("stored", lambda stored: stored[1] == "fifo") == ("orders", "fifo", [1])
        assert recorder.until("stored", lambda stored: stored[1] == "delay") == ("orders", "delay", [5])
        transactions.commit(transactions.prepare(Message("orders", "decided")).transaction_id)
        assert recorder.until("stored", lambda stored: stored[1] == "transaction")[2] == [7]
        group, verdict, source, halves, seconds = recorder.until("decided", lambda _: True)
        assert (group, verdict, source, halves) == (1, "COMMIT", "PRODUCER", 1)
        assert 0 <= seconds < ENOUGH
        assert recorder.until("released", lambda _: True)[0] >= 0
        first = recorder.until("delivered", lambda delivered: delivered[4] == 1)
        assert first[:2] == ("shipping", "orders")
        assert 0 <= first[5] < ENOUGH
        message = consumer.receive(timeout=ENOUGH)[0]
        message.nack(delay=0)
        assert recorder.until("delivered", lambda delivered: delivered[4] == 2)[:3] == ("shipping", "orders", 1)
        assert {kind for kind, _ in recorder.told["database"]} == {"read", "write"}
        assert recorder.until("started", lambda started: started[0] == "send")[1] >= 0


def test_what_is_refused_within_a_call_is_told_by_its_reason(recorder: Recorder) -> None:
    with EmbeddedBroker(observer=recorder, auto_create=False) as broker, Producer(broker.endpoint) as producer:
        with pytest.raises(RequestRefused):
            producer.send("orders", "x")
        assert recorder.until("refused", lambda _: True) == ("TOPIC_NOT_FOUND", 1)
        assert "stored" not in recorder.told


def test_a_check_that_the_next_one_finds_unanswered_is_told(recorder: Recorder) -> None:
    class Silent(Commits):
        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            time.sleep(1.0)
            return LocalTransactionState.COMMIT

    with (
        EmbeddedBroker(observer=recorder, first_check=0.1, check_interval=0.2) as broker,
        TransactionProducer(broker.endpoint, "shop", Silent()) as producer,
    ):
        producer.send_in_transaction(Message("orders", "x"))
        assert recorder.until("unanswered", lambda _: True) == (1,)


class Failing(Recorder):
    """Raises wherever it is called."""

    __slots__ = ()

    def _note(self, kind: str, *what: Any) -> None:
        super()._note(kind, *what)
        raise ZeroDivisionError(kind)


def test_what_an_observer_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    with (
        EmbeddedBroker(observer=failing, first_check=0.1, check_interval=0.2) as broker,
        TransactionProducer(broker.endpoint, "shop", Commits()) as producer,
        Consumer(broker.endpoint, "shipping", ["orders", "payments"]) as consumer,
    ):
        assert producer.send("payments", "sent").offset == 0
        producer.send_in_transaction(Message("orders", "checked"))
        producer.send("payments", "later", delay=0.2)
        assert {consumer.receive(timeout=ENOUGH)[0].text for _ in range(3)} == {"sent", "checked", "later"}
    assert {"call", "batch", "started", "round", "sent", "answered", "database"} <= failing.told.keys()
    assert {"stored", "decided", "released", "delivered"} <= failing.told.keys()
    lines = [record for record in caplog.records if record.name == "halfmq.observer"]
    assert len(lines) == 1, "one a minute"
    assert lines[0].exc_info is not None
