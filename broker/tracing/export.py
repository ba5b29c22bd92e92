"""Sends spans to where the environment says, by OTLP over HTTP.

The variables are OpenTelemetry's own (https://opentelemetry.io/docs/specs/otel/protocol/exporter/), such as
OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import logging
import threading
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from broker.tracing.message_tracer import MessageTracer

logger = logging.getLogger("halfmq.tracer")

CLOSING = 2.0
NAME = "halfmq-broker"
"""The service's name, unless OTEL_SERVICE_NAME says another one."""


class ExportingTracer(MessageTracer):
    """Traces of messages that are sent in the background."""

    __slots__ = ("_provider",)

    def __init__(self, broker_id: str) -> None:
        """Starts the thread that sends."""
        about = {SERVICE_NAME: NAME, SERVICE_INSTANCE_ID: broker_id, SERVICE_VERSION: version("halfmq")}
        # Resource.create lets the environment's settings win over none of these; so they are its defaults here.
        resource = Resource(about).merge(_from_environment())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        super().__init__(self._provider, broker_id)

    def close(self) -> None:
        """Ends the spans that are open and sends what is left, for CLOSING seconds at most: a collector may be away."""
        closing = threading.Thread(target=self._end, name="halfmq-traces", daemon=True)
        closing.start()
        closing.join(CLOSING)
        if closing.is_alive():
            logger.warning("the last spans could not be sent within %g s; they are dropped", CLOSING)

    def _end(self) -> None:
        try:
            self.end_checks()
        finally:
            self._provider.shutdown()


def _from_environment() -> Resource:
    found = Resource.create()
    # Without OTEL_SERVICE_NAME it makes a name up.
    known = {name: value for name, value in found.attributes.items() if not str(value).startswith("unknown_service")}
    return Resource(known)
