"""Which properties a message gets for its trace, and when it gets none."""

from __future__ import annotations

import pytest

from broker.domain.limits import Limits
from broker.domain.message import SHORT_TAG as BROKERS_SHORT_TAG
from client_core import trace_context as module
from client_core.trace_context import MOST_BYTES, MOST_PROPERTIES, SHORT_TAG, add_context, context_in
from halfmq.v1 import message_pb2 as pb

PARENT = f"00-{1:032x}-{2:016x}-01"
STATE = "vendor=some"
BOTH = {"traceparent": PARENT, "tracestate": STATE}
ONE_ENTRY, TWO_ENTRIES = len("traceparent" + PARENT), len("traceparent" + PARENT + "tracestate" + STATE)


def message(count: int = 0, size: int = 0, **fields: object) -> pb.Message:
    """A message with so many properties, and so many bytes of them."""
    properties = {f"{number:04}": "" for number in range(count)}
    if size:
        properties["0000"] = "v" * (size - 4 * max(count, 1))
    return pb.Message(topic="orders", body=b"x", properties=properties, **fields)


def added(to: pb.Message, context: dict[str, str] | None = None) -> set[str]:
    before = set(to.properties)
    add_context(to, BOTH if context is None else context)
    return set(to.properties) - before


def test_the_bounds_are_the_brokers() -> None:
    limits = Limits()
    bounds = (limits.max_properties, limits.max_properties_bytes, BROKERS_SHORT_TAG)
    assert bounds == (MOST_PROPERTIES, MOST_BYTES, SHORT_TAG)


def test_only_the_context_of_w3c_is_added() -> None:
    assert added(message(), {**BOTH, "baggage": "user=1", "b3": "0"}) == {"traceparent", "tracestate"}
    assert added(message(), {"baggage": "user=1"}) == set()


@pytest.mark.parametrize("name", ["traceparent", "tracestate"])
def test_a_property_of_the_application_stays(name: str) -> None:
    own = pb.Message(properties={name: "its own"})
    add_context(own, BOTH)
    assert own.properties[name] == "its own"
    assert own.properties.get("traceparent") == ("its own" if name == "traceparent" else PARENT)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(126, {"traceparent", "tracestate"}), (127, {"traceparent"}), (128, set()), (129, set())],
)
def test_a_message_with_many_properties_gets_what_there_is_room_for(count: int, expected: set[str]) -> None:
    assert added(message(count)) == expected


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (TWO_ENTRIES, {"traceparent", "tracestate"}),
        (TWO_ENTRIES - 1, {"traceparent"}),
        (ONE_ENTRY, {"traceparent"}),
        (ONE_ENTRY - 1, set()),
        (0, set()),
    ],
)
@pytest.mark.parametrize("fields", [{}, {"keys": ["a key", "ä"]}, {"tag": "t" * 256}, {"tag": "t" * 255}])
def test_a_message_with_large_properties_gets_what_there_is_room_for(
    left: int, expected: set[str], fields: dict[str, object]
) -> None:
    counted = len("a key") + 2 if "keys" in fields else 0
    counted += 256 if len(str(fields.get("tag", ""))) == 256 else 0
    full = message(1, MOST_BYTES - left - counted, **fields)
    assert added(full) == expected
    assert sum(len(name) + len(value) for name, value in full.properties.items()) <= MOST_BYTES - counted


def test_a_tracestate_that_others_would_not_read_is_left_out() -> None:
    assert added(message(), {"traceparent": PARENT, "tracestate": "v=" + "x" * 510}) == {"traceparent", "tracestate"}
    assert added(message(), {"traceparent": PARENT, "tracestate": "v=" + "x" * 511}) == {"traceparent"}


def test_of_a_message_only_its_context_is_read() -> None:
    assert context_in({**BOTH, "baggage": "user=1", "other": "x"}) == BOTH
    assert context_in({"traceparent": PARENT, "tracestate": "x" * 513}) == {"traceparent": PARENT}
    assert context_in({"traceparent": "0" * (module.LONGEST + 1)}) == {}
    assert context_in({"tracestate": STATE}) == {}
