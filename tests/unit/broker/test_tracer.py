"""A broker whose tracer fails answers as ever."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

from broker.embedded import EmbeddedBroker
from broker.ports.tracer import NO_TRACER, Tracer, guarded_tracer
from broker.tracing.message_tracer import MessageTracer
from consumer_sdk import Consumer
from producer_sdk import LocalTransactionState, Message, Producer, TransactionListener, TransactionProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN
TRACED = {"traceparent": f"00-{1:032x}-{2:016x}-01"}
LOGGER = "halfmq.tracer"


class Failing(Tracer):
    """Raises wherever it is called."""

    enabled = True

    def __getattribute__(self, name: str) -> Any:
        if name == "enabled":
            return True
        raise RuntimeError(f"{name} fails")


class FailingSampler(Sampler):
    """As one may be that OTEL_TRACES_SAMPLER names."""

    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the sampler fails")

    def get_description(self) -> str:
        return "fails"


class Shop(TransactionListener):
    """Knows of a commit when it is asked."""

    def execute_local_transaction(self, messages: object, arg: Any) -> LocalTransactionState:
        return UNKNOWN

    def check_local_transaction(self, messages: object) -> LocalTransactionState:
        return COMMIT


@pytest.fixture(params=["tracer", "sampler"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    provider = TracerProvider(sampler=FailingSampler(), shutdown_on_exit=False)
    tracer = Failing() if request.param == "tracer" else MessageTracer(provider, "one")
    with EmbeddedBroker(tracer=tracer, first_check=0.2, check_interval=0.2) as made:
        yield made


def messages(*texts: str) -> list[Message]:
    return [Message("orders", text, properties=TRACED) for text in texts]


def test_everything_is_sent_checked_decided_and_delivered(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[tuple[str, int]] = []
    everything = threading.Event()
    expected = sorted((text, 1) for text in ("one", "two", "three", "committed", "checked"))

    def handle(message: Any) -> None:
        got.append((message.text, message.attempt))
        if len(got) == len(expected):
            everything.set()

    with (
        caplog.at_level(logging.ERROR, LOGGER),
        Producer(broker.endpoint) as plain,
        TransactionProducer(broker.endpoint, "shop", Shop()) as producer,
        Consumer(broker.endpoint, "readers", "orders", start="earliest") as consumer,
    ):
        producer.wait_until_registered(10)
        assert len(plain.send_many(messages("one", "two", "three"))) == 3
        with producer.transaction() as tx:
            tx.send_many(messages("committed"))
        assert producer.send_in_transaction(messages("checked")).local_state is UNKNOWN
        running = threading.Thread(target=consumer.run, args=(handle,))
        running.start()
        assert everything.wait(30), got
        consumer.stop()
        running.join()
    assert sorted(got) == expected
    assert len([each for each in caplog.records if each.name == LOGGER]) == 1


def test_where_there_is_no_tracer_nothing_is_guarded() -> None:
    assert guarded_tracer(NO_TRACER) is NO_TRACER


def test_a_guarded_tracer_has_every_hook() -> None:
    hooks = {name for name in vars(Tracer) if not name.startswith("_") and name != "enabled"}
    guarded = guarded_tracer(Failing())
    assert guarded.enabled
    assert {name for name in hooks if getattr(type(guarded), name) is getattr(Tracer, name)} == set()
