"""A Django site that sends a message in each request, served by WSGI and ASGI; prints what its spans are below.

Run with the text of the listing that instruments it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from producer_sdk import AsyncProducer, Producer
from producer_sdk.testing import embedded_broker

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker

broker: EmbeddedBroker
producer: Producer


def order(_: HttpRequest) -> HttpResponse:
    """A view that sends by the producer of the process."""
    producer.send("orders", "three apples")
    return HttpResponse(status=202)


async def order_async(_: HttpRequest) -> HttpResponse:
    """The same on asyncio."""
    async with AsyncProducer(broker.endpoint) as own:
        await own.send("orders", "three apples")
    return HttpResponse(status=202)


urlpatterns = [path("orders", order), path("orders-async", order_async)]


def by_wsgi(application: Any, place: str) -> None:
    """Serves a request as a WSGI server does."""
    environment = {"PATH_INFO": place, "REQUEST_METHOD": "POST"}
    setup_testing_defaults(environment)
    application(environment, lambda *_: None).close()


async def by_asgi(application: Any, place: str) -> None:
    """Serves a request as an ASGI server does."""
    request: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not request:
            await asyncio.Event().wait()
        return request.pop()

    async def send(_: object) -> None:
        return

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": place,
        "raw_path": place.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"shop")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await application(scope, receive, send)


def main(listing: str) -> None:
    """Serves four requests, and prints for each the names of its span and of those below it."""
    global broker, producer
    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="of a test", MIDDLEWARE=[])
    os.environ["DJANGO_SETTINGS_MODULE"] = "configured above"
    made: dict[str, Any] = {}
    exec(listing, made)
    exporter = InMemorySpanExporter()
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with embedded_broker(["orders"]) as broker, Producer(broker.endpoint) as producer:
        for place in ("/orders", "/orders-async"):
            by_wsgi(made["application"], place)
            asyncio.run(by_asgi(get_asgi_application(), place))
    spans = exporter.get_finished_spans()
    requests = [span for span in spans if span.parent is None]
    below = [[each.name for each in spans if each.parent == span.context] for span in requests]
    json.dump([[span.name, *names] for span, names in zip(requests, below, strict=True)], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
