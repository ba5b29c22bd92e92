"""The trace context of a message: two of its properties, as W3C Trace Context writes them.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfmq.v1 import message_pb2 as pb

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MOST_PROPERTIES = 128
MOST_BYTES = 16 * 1024
"""Of keys and properties of a message together; brokers refuse more of either."""
SHORT_TAG = 255
"""Characters of a tag up to which it does not count as a property."""
LONGEST = 512
"""Characters of a value; longer ones are not read."""


def add_context(message: pb.Message, context: Mapping[str, str]) -> None:
    """Adds a context to a message that has none, as far as there is room: nothing is refused for its trace alone.

    A property that the message has is not changed.
    """
    properties = message.properties
    traceparent, tracestate = context.get(TRACEPARENT, ""), context.get(TRACESTATE, "")
    if not traceparent or TRACEPARENT in properties:
        return
    entries, size = MOST_PROPERTIES - len(properties), MOST_BYTES - _size(message)
    size -= len(TRACEPARENT) + len(traceparent)
    if entries < 1 or size < 0:
        return
    properties[TRACEPARENT] = traceparent
    if not tracestate or TRACESTATE in properties or len(tracestate) > LONGEST:
        return
    if entries > 1 and len(TRACESTATE) + len(tracestate.encode()) <= size:
        properties[TRACESTATE] = tracestate


def context_in(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a message that are its context; empty if it has none."""
    traceparent = properties.get(TRACEPARENT, "") if properties else ""
    if not traceparent or len(traceparent) > LONGEST:
        return {}
    tracestate = properties.get(TRACESTATE, "")
    if not tracestate or len(tracestate) > LONGEST:
        return {TRACEPARENT: traceparent}
    return {TRACEPARENT: traceparent, TRACESTATE: tracestate}


def _size(message: pb.Message) -> int:
    """Bytes of what a broker counts as properties."""
    texts = [*message.keys, *message.properties.keys(), *message.properties.values()]
    if len(message.tag) > SHORT_TAG:
        texts.append(message.tag)
    return sum(len(text.encode()) for text in texts)
