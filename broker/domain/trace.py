"""Trace contexts of messages, as W3C Trace Context writes them (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.domain.message import TRACE_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACEPARENT = "traceparent"
"""The property that carries the context of the span that made a message."""
TRACE_PROPERTIES = frozenset({TRACEPARENT, "tracestate", TRACE_CONTEXT})
"""Stored properties that belong to a trace: whoever sends a message again under its id has another span then."""
LONGEST = 55
_SAMPLED = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]")


def sampled(traceparent: str) -> str:
    """A trace context that is to be recorded; empty if it is not one, or not to be recorded."""
    return traceparent if len(traceparent) == LONGEST and _SAMPLED.fullmatch(traceparent) else ""


def trace_of(properties: Mapping[str, str], notes: Mapping[str, str] | None = None) -> str:
    """The context of a message that is to be recorded: its own property, or what a RocketMQ client's system has."""
    own = properties.get(TRACEPARENT)
    if own is None:
        own = (notes or properties).get(TRACE_CONTEXT, "")
    return sampled(own) if own else ""
