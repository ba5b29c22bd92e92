"""Which trace contexts of messages are recorded."""

from __future__ import annotations

import pytest

from broker.domain.message import TRACE_CONTEXT
from broker.domain.trace import sampled, trace_of

GOOD = f"00-{'a' * 31}1-{'b' * 15}2-01"


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_a_context_with_the_flag_is_recorded(flags: str) -> None:
    assert sampled(GOOD[:-2] + flags) == GOOD[:-2] + flags


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[:-2] + "00",
        GOOD[:-2] + "02",
        f"ff{GOOD[2:]}",
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        GOOD.upper(),
        f"{GOOD}-more",
        GOOD + "\n",
        "x" * 1000,
        "00-trace-span-01",
    ],
)
def test_what_is_no_context_or_is_not_to_be_recorded(text: str) -> None:
    assert sampled(text) == ""


def test_a_message_has_its_context_as_a_property_or_from_the_system_of_a_client() -> None:
    other = GOOD.replace("a", "c")
    assert trace_of({"traceparent": GOOD}) == GOOD
    assert trace_of({"traceparent": GOOD}, {TRACE_CONTEXT: other}) == GOOD
    assert trace_of({}, {TRACE_CONTEXT: other}) == other
    assert trace_of({TRACE_CONTEXT: other}) == other
    assert trace_of({"a": "b"}) == ""
    assert trace_of({"traceparent": "odd"}) == ""
