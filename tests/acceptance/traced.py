"""A process with two brokers, producers and consumers that are all traced; prints their spans as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker.embedded import EmbeddedBroker
from broker.tracing.message_tracer import MessageTracer
from consumer_sdk import Consumer
from producer_sdk import (
    Admin,
    HalfMessages,
    LocalTransactionState,
    Message,
    Producer,
    TransactionListener,
    TransactionProducer,
)

if TYPE_CHECKING:
    from consumer_sdk import ReceivedMessage

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN


class Shop(TransactionListener):
    """Knows at the second check that a transaction committed."""

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        return UNKNOWN

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        return COMMIT if messages.check_number > 1 else UNKNOWN


def seen(span: Any) -> dict[str, Any]:
    """A span as the test looks at it."""
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": f"{span.context.trace_id:032x}",
        "id": f"{span.context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "attributes": dict(span.attributes),
        "failed": not span.status.is_ok and span.status.status_code is trace.StatusCode.ERROR,
        "began": span.start_time,
        "ended": span.end_time,
    }


def main(database: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("test")
    # Longer than an answer takes on a busy machine: a check that is sent again ends the span of the one before.
    times = {"first_check": 0.2, "check_interval": 3, "database": database}
    one = EmbeddedBroker(tracer=MessageTracer(provider, "one"), broker_id="one", **times)
    # On SQLite there is one broker at a time.
    two = (
        one
        if database.startswith("sqlite")
        else EmbeddedBroker(tracer=MessageTracer(provider, "two"), broker_id="two", **times)
    )
    handled: list[str] = []
    done = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        with tracer.start_as_current_span("the handler's own"):
            handled.append(message.text)
        if len(handled) == 6:
            done.set()
        if message.text == "bad":
            raise ValueError(message.text)

    with one, two if two is not one else threading.Lock():
        with Admin(one.endpoint) as admin:
            admin.create_topic("orders", queues=1)
            admin.create_topic("mails", queues=1)
            admin.create_group("readers", start="earliest", max_attempts=1)
        with (
            TransactionProducer(one.endpoint, "shop", client_id="committing") as committing,
            TransactionProducer(two.endpoint, "stall", Shop(), client_id="answering") as answering,
            Producer(one.endpoint, client_id="sending") as sending,
        ):
            answering.wait_until_registered(10)
            with tracer.start_as_current_span("order"), committing.transaction() as tx:
                tx.send("orders", "committed", tag="new")
                tx.send("mails", "mail")
            with tracer.start_as_current_span("slow order"):
                slow = answering.send_in_transaction([Message("orders", "checked")])
            with tracer.start_as_current_span("plain"):
                sending.send("orders", "plain")
            with tracer.start_as_current_span("several"):
                sending.send_many([Message("orders", "first"), Message("orders", "bad")])
            with tracer.start_as_current_span("dropped"):
                try:
                    with committing.transaction() as tx:
                        tx.send("orders", "dropped")
                        raise ValueError("no")
                except ValueError:
                    pass
            until = time.monotonic() + 30
            while answering.get_transaction(slow.transaction_id).state.name != "COMMITTED":
                assert time.monotonic() < until
                time.sleep(0.05)
        with Consumer(two.endpoint, "readers", ["orders", "mails"], client_id="reading") as consumer:
            running = threading.Thread(target=consumer.run, args=(handle,))
            running.start()
            assert done.wait(30), handled
            consumer.stop()
            running.join()
    json.dump([seen(span) for span in exporter.get_finished_spans()], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
