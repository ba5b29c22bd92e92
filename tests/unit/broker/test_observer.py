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
    from collections.abc import Callable

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
    assert {"call", "batch", "round", "sent", "answered"} <= failing.told.keys()
    lines = [record for record in caplog.records if record.name == "halfmq.observer"]
    assert len(lines) == 1, "one a minute"
    assert lines[0].exc_info is not None
