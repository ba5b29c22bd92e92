"""Spans of the SDKs, where the application has a tracer provider."""

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: F401
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import producer_sdk

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
try:
    with producer_sdk.Producer("127.0.0.1:1", retry=producer_sdk.RetryConfig(deadline=1)) as producer:
        producer.send("orders", "one")
except producer_sdk.HalfmqError:
    names = {span.name for span in spans.get_finished_spans()}
assert names, "no span of a send"
print(f"spans {', '.join(sorted(names))} were recorded")
