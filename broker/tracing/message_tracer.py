"""Spans of what the broker does with messages whose trace is recorded: store, check, release and deliver them.

Each one is in the trace of its message: a child of the span that made it, or of the span that decided it, and linked
with the messages that it is about. Names and attributes follow OpenTelemetry's conventions for messaging
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from broker.domain.ids import format_id, message_id
from broker.domain.trace import sampled, trace_of
from broker.ports.tracer import Tracer
from broker.tracing.remembered import RememberedContexts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.trace import TracerProvider

    from broker.domain.message import Message
    from broker.ports.checks import ClaimedCheck
    from broker.ports.delivery import Delivered

MOST_CHECKS = 10_000
"""Checks without an answer."""
MOST_CHECK_LINKS = 20_000
"""Of the spans of these checks together: less than 10 MB."""
MOST_LINKS = 128
LONGEST_CHECK = 300.0
"""Seconds after which a check's span ends without an answer: another broker may have decided the transaction."""
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _OpenCheck:
    """A check without an answer."""

    span: Any
    number: int
    client_id: str
    links: int
    began: float


class MessageTracer(Tracer):
    """Makes the spans."""

    __slots__ = ("_broker_id", "_check_links", "_checks", "_contexts", "_tracer")
    enabled = True

    def __init__(self, provider: TracerProvider, broker_id: str) -> None:
        """Takes the provider of tracers, and the broker's name."""
        self._tracer = provider.get_tracer("halfmq.broker")
        self._broker_id = broker_id
        self._contexts = RememberedContexts()
        self._checks: OrderedDict[bytes, _OpenCheck] = OrderedDict()
        self._check_links = 0

    def now(self) -> int:
        """The time, in nanoseconds since 1970."""
        return time.time_ns()

    def stored(
        self, operation: str, transaction_id: bytes, messages: Iterable[Message], group: str, began: int
    ) -> None:
        """A span for each message."""
        contexts = []
        for position, message in enumerate(messages):
            traceparent = trace_of(message.properties, message.notes)
            if not traceparent:
                continue
            contexts.append(traceparent)
            own: dict[str, Any] = {"messaging.message.id": message_id(transaction_id, position)}
            if group:
                own |= {"messaging.halfmq.producer_group": group, **_of(transaction_id)}
            own["messaging.message.body.size"] = len(message.body)
            self._add(f"{operation} {message.topic}", traceparent, began, {**own, **_on(message.topic)})
        if group and contexts:
            self._contexts.add(transaction_id, contexts)

    def decided(
        self, transaction_id: bytes, verdict: str, source: str, traceparent: str, released: int, began: int
    ) -> None:
        """A span for the release or the drop, in the trace of the verdict, linked with the messages."""
        contexts = self._contexts.pop(transaction_id)
        self._end_check(transaction_id)
        self._end_old_checks()
        parent = sampled(traceparent) or next(iter(contexts), "")
        if not parent:
            return
        own = {**_of(transaction_id), "messaging.halfmq.verdict_source": source}
        if released:
            own["messaging.batch.message_count"] = released
        name = "release" if verdict == "commit" else "drop"
        self._add(name, parent, began, own, links=[each for each in contexts if each != parent])

    def check_sent(self, check: ClaimedCheck, client_id: str) -> None:
        """A span that ends with the answer, or when it is certain or likely that none will come."""
        self._end_check(check.transaction_id)
        self._end_old_checks()
        found = [trace_of(half.properties, half.notes) for half in check.halves[:MOST_LINKS]]
        contexts = [each for each in found if each]
        if not contexts:
            return
        self._contexts.add(check.transaction_id, contexts)
        own = {**_of(check.transaction_id), "messaging.halfmq.check_number": check.check_number}
        own |= {"messaging.client.id": client_id, **_on(check.halves[0].topic)}
        span = self._start(f"check {check.halves[0].topic}", contexts[0], 0, own, contexts)
        self._checks[check.transaction_id] = _OpenCheck(
            span, check.check_number, client_id, len(contexts), time.monotonic()
        )
        self._check_links += len(contexts)
        while len(self._checks) > MOST_CHECKS or self._check_links > MOST_CHECK_LINKS:
            self._end_check(next(iter(self._checks)))

    def check_answered(self, transaction_id: bytes, verdict: str, client_id: str, traceparent: str) -> None:
        """Ends the check's span, with the answer."""
        check = self._checks.get(transaction_id)
        if check is None or check.client_id != client_id:
            return
        check.span.set_attribute("messaging.halfmq.answer", verdict)
        if sampled(traceparent):
            check.span.add_link(_context_of(traceparent))
        self._end_check(transaction_id)

    def check_abandoned(self, transaction_id: bytes, check_number: int, client_id: str) -> None:
        """Ends the check's span, without an answer."""
        check = self._checks.get(transaction_id)
        if check is not None and (check.number, check.client_id) == (check_number, client_id):
            self._end_check(transaction_id)

    def end_checks(self) -> None:
        """Ends the spans of all checks: no answers will come."""
        while self._checks:
            self._end_check(next(iter(self._checks)))

    def delivered(self, parts: Sequence[Delivered], group: str, client_id: str, began: int) -> None:
        """A span for each message."""
        for part in parts:
            for message in part.messages:
                traceparent = trace_of(message.properties)
                if not traceparent:
                    continue
                own = {
                    "messaging.message.id": message_id(message.transaction_id, message.position),
                    "messaging.consumer.group.name": group,
                    "messaging.client.id": client_id,
                    "messaging.destination.partition.id": str(message.queue_no),
                    "messaging.halfmq.offset": message.offset,
                    "messaging.halfmq.attempt": part.attempt,
                }
                self._add(f"deliver {message.topic}", traceparent, began, {**own, **_on(message.topic)})

    def _end_check(self, transaction_id: bytes) -> None:
        check = self._checks.pop(transaction_id, None)
        if check is not None:
            self._check_links -= check.links
            check.span.end()

    def _end_old_checks(self) -> None:
        before = time.monotonic() - LONGEST_CHECK
        while self._checks:
            oldest = next(iter(self._checks))
            if self._checks[oldest].began > before:
                return
            self._end_check(oldest)

    def _add(self, name: str, parent: str, began: int, attributes: dict[str, Any], links: Sequence[str] = ()) -> None:
        self._start(name, parent, began, attributes, links).end()

    def _start(self, name: str, parent: str, began: int, attributes: dict[str, Any], links: Sequence[str]) -> Any:
        known = {
            "messaging.system": "halfmq",
            "messaging.operation.name": name.partition(" ")[0],
            "messaging.halfmq.broker_id": self._broker_id,
        }
        return self._tracer.start_span(
            name,
            context=_PROPAGATOR.extract({"traceparent": parent}, context=Context()),
            kind=SpanKind.INTERNAL,
            attributes={**known, **attributes},
            links=[Link(_context_of(each)) for each in links[:MOST_LINKS]],
            start_time=began or None,
        )


def _context_of(traceparent: str) -> Any:
    return get_current_span(_PROPAGATOR.extract({"traceparent": traceparent}, context=Context())).get_span_context()


def _of(transaction_id: bytes) -> dict[str, Any]:
    return {"messaging.halfmq.transaction_id": format_id(transaction_id)}


def _on(topic: str) -> dict[str, Any]:
    return {"messaging.destination.name": topic}
