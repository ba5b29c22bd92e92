"""Without a tracer provider of the application, clients neither import OpenTelemetry nor change a message."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
        many = {f"name-{number}": "v" for number in range(125)}
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


BROKEN = """
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
class Fails(Sampler):
    def should_sample(self, *_, **__):
        raise RuntimeError("the application's sampler fails")
    def get_description(self):
        return "it fails"
class FailsAtTheEnd(SpanProcessor):
    def on_end(self, span):
        raise RuntimeError("the application's processor fails")
provider = TracerProvider(sampler={sampler})
provider.add_span_processor(FailsAtTheEnd())
trace.set_tracer_provider(provider)
"""


@pytest.mark.parametrize("sampler", ["Fails()", "ALWAYS_ON"])
def test_an_application_whose_tracing_fails_sends_and_receives(sampler: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENDING.format(setting=BROKEN.format(sampler=sampler))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "'a': 'b'" in done.stdout, done.stderr
