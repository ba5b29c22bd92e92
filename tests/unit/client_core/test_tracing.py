"""Without a tracer provider of the application, clients neither import OpenTelemetry nor change a message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from client_core.tracing import _Remembered

SENDING = """
import sys
from producer_sdk import Producer
from producer_sdk.testing import embedded_broker
from consumer_sdk import Consumer
{setting}
with embedded_broker(topics=["orders"], groups=["g"]) as broker:
    with Producer(broker.endpoint) as producer:
        producer.send("orders", "x", properties={{"a": "b"}})
    with Consumer(broker.endpoint, "g", "orders", start="earliest") as consumer:
        (message,) = consumer.receive(timeout=10)
        print(message.properties, "opentelemetry.trace" in sys.modules)
"""


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("", "{'a': 'b'} False"),
        # A library that only uses the interface.
        ("import opentelemetry.trace", "{'a': 'b'} True"),
    ],
)
def test_messages_stay_as_they_are(setting: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENDING.format(setting=setting)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.strip() == printed, done.stderr


RECEIVING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from producer_sdk import Message, Producer
from producer_sdk.testing import embedded_broker
from consumer_sdk import Consumer
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
with embedded_broker(topics=["orders"], groups=["g"]) as broker:
    with Producer(broker.endpoint) as producer:
        producer.send("orders", "x", properties={"traceparent": "the application's own"})
        producer.send_many([Message("orders", "y"), Message("orders", "z")])
        many = {f"name-{number}": "v" for number in range(128)}
        producer.send("orders", "w", properties=many)
    got = []
    with Consumer(broker.endpoint, "g", "orders", start="earliest") as consumer:
        while len(got) < 4:
            got += consumer.receive(10, timeout=10)
print([message.properties.get("traceparent", "") != "" for message in sorted(got, key=lambda each: each.text)])
print(got and [m.properties["traceparent"] for m in got if m.text == "x"][0])
received = [span for span in exporter.get_finished_spans() if span.name == "receive orders"]
print(sum(span.attributes["messaging.batch.message_count"] for span in received), sum(len(s.links) for s in received))
print({span.kind.name for span in received})
"""


def test_what_is_received_is_a_span_with_links_and_properties_of_the_application_stay() -> None:
    done = subprocess.run([sys.executable, "-c", RECEIVING], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["[False, True, True, True]", "the application's own", "4 2", "{'CLIENT'}"], (
        done.stderr
    )


SEVERAL = """
from collections import Counter
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from producer_sdk import Message, Producer
from producer_sdk.testing import embedded_broker
from consumer_sdk import Consumer
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))

class Tells(TraceContextTextMapPropagator):
    def inject(self, carrier, *_, **__):
        carrier.update(b3="0", tenant="7")

propagate.set_global_textmap(CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator(), Tells()]))
context.attach(baggage.set_baggage("basket", "b" * 8000))
with embedded_broker(topics=["orders"], groups=["g"]) as broker:
    with Producer(broker.endpoint) as producer:
        {sending}
    got = []
    with Consumer(broker.endpoint, "g", "orders", start="earliest") as consumer:
        while len(got) < {count}:
            got += consumer.receive(1000, timeout=10)
    {telling}
"""


def printed(**parts: object) -> list[str]:
    program = SEVERAL.format(**parts)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_of_many_messages_carries_a_context_of_its_own_and_the_call_links_to_the_first_128() -> None:
    telling = """
    made = [f"{span.context.span_id:016x}" for span in exporter.get_finished_spans() if span.name == "create orders"]
    carried = {message.properties.get("traceparent", "--").split("-")[2] for message in got}
    (sending,) = [span for span in exporter.get_finished_spans() if span.name == "send orders"]
    print(len(carried), carried == set(made), [f"{link.context.span_id:016x}" for link in sending.links] == made[:128])
    """
    sending = 'producer.send_many([Message("orders", str(number)) for number in range(300)])'
    assert printed(sending=sending, count=300, telling=telling.strip()) == ["300 True True"]


def test_nothing_of_the_applications_propagators_is_stored_and_nothing_refused_for_it() -> None:
    sending = """
        own = {"baggage": "its own", "b3": "its own", "large": "l" * 9000}
        producer.send("orders", "x", properties=own)
        producer.send("orders", "y", properties={f"name-{number}": "v" for number in range(127)})
    """
    telling = """
    for message in sorted(got, key=lambda each: each.text):
        print(len(message.properties), sorted(set(message.properties) & {"baggage", "b3", "tenant", "traceparent"}),
              message.properties.get("baggage"), message.properties.get("b3"))
    """
    assert printed(sending=sending.strip(), count=2, telling=telling.strip()) == [
        "4 ['b3', 'baggage', 'traceparent'] its own its own",
        "128 ['traceparent'] None None",
    ]


def test_a_message_that_is_sent_again_under_its_id_is_stored_once_and_keeps_its_first_context() -> None:
    sending = """
        for _ in range(2):
            producer.send("orders", "x", message_id="0f8fad5b-d9cb-469f-a165-70867728950e")
        producer.send("orders", "y")
    """
    telling = """
    spans = [f"{span.context.span_id:016x}" for span in exporter.get_finished_spans() if span.name == "send orders"]
    print(sorted((message.text, spans.index(message.properties["traceparent"].split("-")[2])) for message in got))
    """
    assert printed(sending=sending.strip(), count=2, telling=telling.strip()) == ["[('x', 0), ('y', 2)]"]


def test_links_that_wait_for_a_verdict_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Remembered, "MOST_LINKS", 10)
    monkeypatch.setattr(_Remembered, "MOST_TRANSACTIONS", 4)
    remembered = _Remembered()
    for name in "abcd":
        remembered.add(name, [1, 2])
        remembered.add(name, [3])
    assert [remembered.pop(name) for name in "abcd"] == [[], [1, 2, 3], [1, 2, 3], [1, 2, 3]]
    for name in "abcdef":
        remembered.add(name, [1])
    assert [remembered.pop(name) for name in "abcdef"] == [[], [], [1], [1], [1], [1]]
    remembered.add("many", list(range(200)))
    assert remembered.pop("many") == []
