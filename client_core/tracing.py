"""Spans of what clients do, by OpenTelemetry, where the application uses it.

Nothing is to be switched on: an application that has set a tracer provider gets spans, and its messages carry their
context as properties (``traceparent``, W3C Trace Context). Names and attributes follow OpenTelemetry's semantic
conventions for messaging (https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/). Without it
a call costs a look at ``sys.modules``. Where the application's tracing fails, messages go on without spans.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from client_core.trace_context import TRACEPARENT, add_context, context_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from halfmq.v1 import message_pb2 as pb

__all__ = ["Tracing", "current_tracing"]

logger = logging.getLogger("halfmq.tracing")

LOG_EVERY = 60.0
"""Seconds between log lines about tracing that fails, and between attempts to find a provider that cannot be loaded."""
_MOST_LINKS = 128


class _Failures:
    """When the application's tracing failed, as far as that matters for what follows."""

    def __init__(self) -> None:
        self._logged_at = float("-inf")
        self.no_provider_until = float("-inf")

    def log(self, text: str) -> None:
        """Logs the exception that is being handled, at most once in LOG_EVERY."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            logger.warning("%s", text, exc_info=True)


_failures = _Failures()


def current_tracing() -> Tracing | None:
    """The application's tracing; None where it has set no tracer provider, or one that cannot be loaded."""
    api = sys.modules.get("opentelemetry.trace")
    # Another thread may be importing it: it is among the modules before it has its contents.
    if api is None or getattr(getattr(api, "__spec__", None), "_initializing", False):
        return None
    if time.monotonic() < _failures.no_provider_until:
        return None
    try:
        if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return None
        return _tracing()
    except Exception:
        _failures.no_provider_until = time.monotonic() + LOG_EVERY
        _failures.log("the application's tracer provider cannot be used; messages go on without traces")
        return None


@cache
def _tracing() -> Tracing:
    return Tracing()


class Tracing:
    """Makes spans, and carries their contexts in messages. What the application's tracing raises has no effect."""

    def __init__(self) -> None:
        """Uses the global tracer provider, also if it is set later."""
        # Only applications that use it have it.
        from opentelemetry import context, trace  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._context, self._trace = context, trace
        # Not the application's own: brokers and other clients read this format, and baggage would be stored.
        self._propagator = TraceContextTextMapPropagator()
        self._remembered = _Remembered()

    @contextmanager
    def sending(
        self, operation: str, messages: Sequence[pb.Message], client_id: str, transaction_id: str = ""
    ) -> Iterator[None]:
        """A span around storing messages, whose contexts they carry from here on.

        One message carries the context of this span. Several have a span each, "create"; this one links to the first
        128 of them.

        Args:
            operation: Name of the operation, such as "send".
            messages: The messages; contexts that they have are kept.
            client_id: Name of the producer.
            transaction_id: Identity of their transaction; empty: they are ordinary messages.
        """
        attributes = _about(messages, operation, "send", client_id)
        if transaction_id:
            attributes["messaging.halfmq.transaction_id"] = transaction_id
        kind, links = "PRODUCER", []
        if len(messages) > 1:
            kind = "CLIENT"
            attributes["messaging.batch.message_count"] = len(messages)
            for message in messages:
                self._create(message, client_id)
            links = self._links(messages)
        with self._span(_named(operation, attributes), kind, attributes, links):
            if len(messages) == 1:
                self._inject(messages[0])
            if transaction_id:
                self._remembered.add(transaction_id, links or self._links(messages))
            yield

    def _create(self, message: pb.Message, client_id: str) -> None:
        attributes = _about([message], "create", "create", client_id)
        with self._span(_named("create", attributes), "PRODUCER", attributes, ()):
            self._inject(message)

    @contextmanager
    def deciding(self, operation: str, transaction_id: str, client_id: str) -> Iterator[str]:
        """A span around a verdict, linked with the messages; yields its context for the broker."""
        attributes = {
            "messaging.system": "halfmq",
            "messaging.operation.name": operation,
            "messaging.operation.type": "settle",
            "messaging.client.id": client_id,
            "messaging.halfmq.transaction_id": transaction_id,
        }
        links = self._remembered.pop(transaction_id)
        with self._span(operation, "CLIENT", attributes, links):
            yield self._current().get(TRACEPARENT, "")

    @contextmanager
    def checking(
        self, messages: Sequence[pb.Message], transaction_id: str, check_number: int, client_id: str
    ) -> Iterator[str]:
        """A span around a check, in the trace of the first message; yields its context for the broker."""
        attributes = _about(messages, "check", "process", client_id)
        attributes["messaging.halfmq.transaction_id"] = transaction_id
        attributes["messaging.halfmq.check_number"] = check_number
        with self._within(messages, "check", attributes):
            yield self._current().get(TRACEPARENT, "")

    @contextmanager
    def processing(self, message: pb.LogMessage, group: str, client_id: str) -> Iterator[None]:
        """A span around a handler, in the trace of its message."""
        attributes = _about([message], "process", "process", client_id)
        attributes |= _place(message, group)
        with self._within([message], "process", attributes):
            yield

    def received(self, messages: Sequence[pb.LogMessage], group: str, client_id: str, began: int) -> None:
        """Adds a span for messages that were received.

        Args:
            messages: The messages, at least one.
            group: Consumer group.
            client_id: Name of the consumer.
            began: When the application began to wait for them, in nanoseconds since 1970.
        """
        attributes = _about(messages, "receive", "receive", client_id)
        attributes["messaging.consumer.group.name"] = group
        attributes["messaging.batch.message_count"] = len(messages)
        links = self._links(messages)
        with _without_failing():
            self._trace.get_tracer("halfmq").start_span(
                _named("receive", attributes),
                kind=self._trace.SpanKind.CLIENT,
                attributes=attributes,
                links=links,
                start_time=began,
            ).end()

    def context_of(self, properties: Mapping[str, str]) -> Any:
        """The context that a message carries, as OpenTelemetry's Context; an empty one if it carries none."""
        found = self._context.Context()
        with _without_failing():
            found = self._propagator.extract(context_in(properties), context=found)
        return found

    @contextmanager
    def _within(self, messages: Sequence[Any], operation: str, attributes: dict[str, Any]) -> Iterator[None]:
        """A consumer's span: linked with the messages, and in the trace of the first one unless it has another one."""
        links, parent = self._links(messages), None
        with _without_failing():
            if links and not self._trace.get_current_span().get_span_context().is_valid:
                parent = self.context_of(messages[0].properties)
        with self._span(_named(operation, attributes), "CONSUMER", attributes, links, parent):
            yield

    @contextmanager
    def _span(
        self, name: str, kind: str, attributes: dict[str, Any], links: Sequence[Any], parent: Any = None
    ) -> Iterator[None]:
        opened, span = ExitStack(), None
        with _without_failing():
            tracer, of_kind = self._trace.get_tracer("halfmq"), self._trace.SpanKind[kind]
            span = opened.enter_context(
                tracer.start_as_current_span(name, context=parent, kind=of_kind, attributes=attributes, links=links)
            )
        try:
            yield
        except BaseException as error:
            with _without_failing():
                if span is not None:
                    span.set_attribute("error.type", _type_of(error))
            # By itself: the span has to be left whatever failed before.
            with _without_failing():
                opened.__exit__(type(error), error, error.__traceback__)
            raise
        with _without_failing():
            opened.close()

    def _inject(self, message: pb.Message) -> None:
        with _without_failing():
            add_context(message, self._current())

    def _current(self) -> dict[str, str]:
        """The context of the current span; empty if there is none."""
        carrier: dict[str, str] = {}
        with _without_failing():
            self._propagator.inject(carrier)
        return carrier

    def _links(self, messages: Iterable[Any]) -> list[Any]:
        """Links to the contexts of the first 128 messages, as far as they have one."""
        found = [self._link(message.properties) for message, _ in zip(messages, range(_MOST_LINKS), strict=False)]
        return [link for link in found if link is not None]

    def _link(self, properties: Mapping[str, str]) -> Any:
        """A link to the context that a message carries; None where it has none."""
        if not context_in(properties):
            return None
        with _without_failing():
            known = self._trace.get_current_span(self.context_of(properties)).get_span_context()
            return self._trace.Link(known) if known.is_valid else None
        return None


class _Remembered:
    """Links to the messages of transactions that wait for their verdict, for clients on any thread."""

    MOST_TRANSACTIONS = 10_000
    MOST_LINKS = 20_000
    """Of all transactions together: less than 10 MB."""

    def __init__(self) -> None:
        self._links: OrderedDict[str, list[Any]] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def add(self, transaction_id: str, links: list[Any]) -> None:
        """Adds to a transaction's; those of the oldest ones go when there are too many."""
        with self._lock:
            known = self._links.get(transaction_id, [])
            now = (known + links)[:_MOST_LINKS]
            self._links[transaction_id] = now
            self._count += len(now) - len(known)
            while len(self._links) > self.MOST_TRANSACTIONS or self._count > self.MOST_LINKS:
                self._count -= len(self._links.popitem(last=False)[1])

    def pop(self, transaction_id: str) -> list[Any]:
        """Those of a transaction, which are forgotten."""
        with self._lock:
            found = self._links.pop(transaction_id, [])
            self._count -= len(found)
            return found


@contextmanager
def _without_failing() -> Iterator[None]:
    """What the application has set up for tracing may fail; sending and receiving goes on."""
    try:
        yield
    except Exception:
        _failures.log("the application's tracing failed; messages go on without this span")


def _type_of(error: BaseException) -> str:
    """What kind of error it is: the broker's reason, or the class."""
    reason = getattr(error, "reason", "")
    return reason if reason and isinstance(reason, str) else type(error).__qualname__


def _about(messages: Sequence[Any], operation: str, kind: str, client_id: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "halfmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.client.id": client_id,
    }
    topics = {message.topic for message in messages}
    if len(topics) == 1:
        attributes["messaging.destination.name"] = topics.pop()
    if len(messages) == 1:
        message = messages[0]
        if message.message_id:
            attributes["messaging.message.id"] = message.message_id
        attributes["messaging.message.body.size"] = len(message.body)
    return attributes


def _place(message: pb.LogMessage, group: str) -> dict[str, Any]:
    return {
        "messaging.consumer.group.name": group,
        "messaging.destination.partition.id": str(message.queue),
        "messaging.halfmq.offset": message.offset,
    }


def _named(operation: str, attributes: Mapping[str, Any]) -> str:
    """The name of a span: the operation, and the topic where there is one."""
    return f"{operation} {attributes.get('messaging.destination.name', '')}".rstrip()
