"""An application's tracing that fails, wherever it does: messages go their way, and the log says so once."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALL_WAYS = """
import logging, sys, threading
from consumer_sdk import Consumer
from producer_sdk import LocalTransactionState, Message, Producer, TransactionListener, TransactionProducer
from producer_sdk.testing import embedded_broker

class Counting(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())

lines = []
logging.getLogger("halfmq.tracing").addHandler(Counting())
{setting}

class Shop(TransactionListener):
    def execute_local_transaction(self, messages, arg):
        return arg
    def check_local_transaction(self, messages):
        return LocalTransactionState.COMMIT

handled, all_there = [], threading.Event()

def handle(message):
    handled.append((message.text, message.attempt))
    if len(handled) == 6:
        all_there.set()

settings = {{"first_check": 0.2, "check_interval": 0.2}}
with embedded_broker(topics=["orders"], groups=["g"], **settings) as broker:
    with Consumer(broker.endpoint, "g", "orders", start="earliest") as consumer:
        running = threading.Thread(target=consumer.run, args=(handle,))
        running.start()
        with TransactionProducer(broker.endpoint, "shop", Shop()) as producer, Producer(broker.endpoint) as plain:
            producer.wait_until_registered(10)
            plain.send("orders", "sent")
            plain.send_many([Message("orders", "first of many"), Message("orders", "second of many")])
            with producer.transaction() as tx:
                tx.send("orders", "committed")
            producer.send_in_transaction(Message("orders", "listened"), LocalTransactionState.COMMIT)
            producer.send_in_transaction(Message("orders", "checked"), LocalTransactionState.UNKNOWN)
            assert all_there.wait(30), handled
        consumer.stop()
        running.join()
    with Consumer(broker.endpoint, "g", "orders", start="earliest") as consumer:
        assert consumer.receive(timeout=0) == []
print(sorted(handled))
print(len(lines))
"""
ALL_HANDLED = sorted(
    (text, 1) for text in ("sent", "first of many", "second of many", "committed", "listened", "checked")
)

FAILING_SAMPLER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler
class Fails(Sampler):
    def should_sample(self, *_, **__):
        raise RuntimeError("the application's sampler fails")
    def get_description(self):
        return "it fails"
trace.set_tracer_provider(TracerProvider(sampler=Fails()))
"""
FAILING_PROCESSOR = """
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
class FailsAtTheEnd(SpanProcessor):
    def on_end(self, span):
        raise RuntimeError("the application's processor fails")
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(FailsAtTheEnd())
"""
FAILING_PROPAGATOR = """
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
class Fails(TextMapPropagator):
    fields = frozenset()
    def inject(self, *_, **__):
        raise RuntimeError("the application's propagator fails")
    extract = inject
propagate.set_global_textmap(Fails())
trace.set_tracer_provider(TracerProvider())
"""
FAILING_SPANS = """
from opentelemetry import trace
class Fails(trace.Span):
    def fails(self, *_, **__):
        raise RuntimeError("the application's spans fail")
    is_recording = get_span_context = set_attribute = set_attributes = set_status = end = fails
    add_event = update_name = record_exception = fails
class Makes(trace.Tracer):
    def start_span(self, *_, **__):
        return Fails()
    def start_as_current_span(self, *_, **__):
        return trace.use_span(Fails(), end_on_exit=True)
class Provides(trace.TracerProvider):
    def get_tracer(self, *_, **__):
        return Makes()
trace.set_tracer_provider(Provides())
"""
NO_TRACER = """
from opentelemetry import trace
class Provides(trace.TracerProvider):
    def get_tracer(self, *_, **__):
        raise RuntimeError("the application's provider fails")
trace.set_tracer_provider(Provides())
"""
UNKNOWN_PROVIDER = """
import os
os.environ["OTEL_PYTHON_TRACER_PROVIDER"] = "nowhere_to_be_found"
import opentelemetry.trace
"""
HALF_AN_API = """
import types
sys.modules["opentelemetry.trace"] = types.ModuleType("opentelemetry.trace")
"""


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("setting", "logged"),
    [
        pytest.param(FAILING_SAMPLER, 1, id="sampler"),
        pytest.param(FAILING_PROCESSOR, 1, id="processor"),
        # It is not asked: messages carry the format of W3C.
        pytest.param(FAILING_PROPAGATOR, 0, id="propagator"),
        pytest.param(FAILING_SPANS, 1, id="spans"),
        pytest.param(NO_TRACER, 1, id="provider"),
        pytest.param(UNKNOWN_PROVIDER, 1, id="a provider that is not installed"),
        pytest.param(HALF_AN_API, 1, id="an API without its contents"),
    ],
)
def test_messages_are_sent_checked_decided_and_handled_once(setting: str, logged: int) -> None:
    assert run(ALL_WAYS.format(setting=setting)) == [str(ALL_HANDLED), str(logged)]


IMPORTING = """
import logging, sys, threading
from importlib.abc import MetaPathFinder
from consumer_sdk import Consumer
from producer_sdk import Producer
from producer_sdk.testing import embedded_broker

class Holds(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "opentelemetry.trace.span":
            half_way.set()
            assert go_on.wait(30)

def instrument():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())

half_way, go_on = threading.Event(), threading.Event()
sys.meta_path.insert(0, Holds())
logging.getLogger("halfmq.tracing").addHandler(logging.StreamHandler(sys.stdout))
importing = threading.Thread(target=instrument)
with embedded_broker(topics=["orders"], groups=["g"]) as broker, Producer(broker.endpoint) as producer:
    importing.start()
    assert half_way.wait(30)
    print("opentelemetry.trace" in sys.modules)
    producer.send("orders", "meanwhile")
    go_on.set()
    importing.join()
    producer.send("orders", "afterwards")
    got = []
    with Consumer(broker.endpoint, "g", "orders", start="earliest") as consumer:
        while len(got) < 2:
            got += consumer.receive(timeout=10)
    print(sorted((message.text, "traceparent" in message.properties) for message in got))
"""


def test_while_another_thread_imports_opentelemetry_messages_go_without_and_then_with_traces() -> None:
    assert run(IMPORTING) == ["True", "[('afterwards', True), ('meanwhile', False)]"]


LEFT = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from client_core.tracing import current_tracing
from halfmq.v1 import message_pb2 as pb

class Odd(Exception):
    @property
    def reason(self):
        raise RuntimeError("no reason")

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
for error in (Odd(), OSError()):
    try:
        with current_tracing().processing(pb.LogMessage(topic="orders", body=b"x"), "g", "me"):
            raise error
    except (Odd, OSError) as caught:
        print(caught is error, trace.get_current_span().get_span_context().is_valid)
for span in exporter.get_finished_spans():
    print(span.status.status_code.name, span.attributes.get("error.type"))
"""


def test_a_span_ends_with_the_handlers_error_whatever_that_is_like() -> None:
    assert run(LEFT) == ["True False", "True False", "ERROR None", "ERROR OSError"]
