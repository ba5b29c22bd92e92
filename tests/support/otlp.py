"""A receiver of traces by OTLP over HTTP, as a collector is."""

from __future__ import annotations

import gzip
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PATIENCE = 60.0


@dataclass(slots=True)
class ReceivedSpan:
    """A span as it was sent."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    links: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)


class TraceReceiver:
    """Takes spans, until the block ends.

    Attributes:
        spans: what came.
        refuses: whether it answers 503, as one that has too much to do.
    """

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.refuses = False
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    content = gzip.decompress(content)
                if self.path == "/v1/traces" and not receiver.refuses:
                    receiver._take(ExportTraceServiceRequest.FromString(content))
                self.send_response(503 if receiver.refuses else 200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def until(self, enough: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
        """All spans so far, once they are enough."""
        ends = time.monotonic() + PATIENCE
        with self._came:
            while not enough(self.spans):
                assert self._came.wait(ends - time.monotonic()), [(each.service, each.name) for each in self.spans]
            return list(self.spans)

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._came:
            for of_resource in request.resource_spans:
                service = _values(of_resource.resource.attributes).get("service.name", "")
                for of_scope in of_resource.scope_spans:
                    self.spans += [_span(service, span) for span in of_scope.spans]
            self._came.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


def _span(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        [link.span_id.hex() for link in span.links],
        _values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in attributes}
