"""Identities and where a message group goes."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.ids import format_id, message_id, parse_id, parse_message_id, uuid7
from broker.domain.message import queue_for_group
from broker.domain.topic import QueueState, Topic
from broker.errors import InvalidArgument

RAW = st.binary(min_size=16, max_size=16)


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_uuid7_is_one(unix_ms: int, random_bytes: bytes) -> None:
    value = uuid.UUID(bytes=uuid7(unix_ms, random_bytes))
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert value.int >> 80 == unix_ms


@given(st.integers(0, (1 << 48) - 2), st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_later_ids_sort_behind(unix_ms: int, one: bytes, two: bytes) -> None:
    assert uuid7(unix_ms, one) < uuid7(unix_ms + 1, two)


@given(RAW)
def test_text_and_back(raw: bytes) -> None:
    text = format_id(raw)
    assert text == str(uuid.UUID(bytes=raw))
    for form in (text, text.upper(), raw.hex()):
        assert parse_id(form) == raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5",
        "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5bb",
        "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5g",
        "018f2a6e7b1c-7cc3-9b7e-0c1d2e3f4a5b",
        "{018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b}",
        " 018f2a6e7b1c7cc39b7e0c1d2e3f4a5",
        "018f2a6e7b1c7cc39b7e0c1d2e3f4a5\n",
        "٠18f2a6e7b1c7cc39b7e0c1d2e3f4a5b",
        "x" * 10_000,
    ],
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_id(text, "some_field")
    assert refused.value.field == "some_field"
    assert len(refused.value.message) < 500


@given(RAW, st.integers(1, 32_000))
def test_message_ids(raw: bytes, position: int) -> None:
    assert message_id(raw, 0) == format_id(raw)
    assert message_id(raw, position) == f"{format_id(raw)}.{position}"


@pytest.mark.parametrize(("name", "value"), [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C)])
def test_a_message_groups_queue_is_fnv1a(name: str, value: int) -> None:
    """The published values of FNV-1a: every broker, of any version, must agree."""
    assert queue_for_group(name, 1 << 62) == value % (1 << 62)


@given(st.text(), st.integers(1, 100))
def test_a_message_groups_queue_exists(name: str, count: int) -> None:
    assert 0 <= queue_for_group(name, count) < count


def test_message_groups_spread() -> None:
    used = {queue_for_group(f"customer-{n}", 8) for n in range(200)}
    assert used == set(range(8))


@pytest.mark.parametrize(
    ("low", "high", "following", "in_flight", "lag"),
    [(0, 0, 0, 0, 0), (0, 10, 0, 0, 10), (0, 10, 4, 3, 9), (0, 10, 10, 2, 2), (5, 10, 2, 0, 5), (5, 5, 2, 0, 0)],
)
def test_lag(low: int, high: int, following: int, in_flight: int, lag: int) -> None:
    assert QueueState("t", 0, low, high, following, 0, in_flight).lag == lag


def test_a_topic_counts_its_queues() -> None:
    assert Topic(1, "t", 0, 0, (4, 5, 6)).queue_count == 3


@pytest.mark.parametrize(("ending", "position"), [("", 0), (".0", 0), (".1", 1), (".999", 999), (".00007", 7)])
def test_a_messages_identity(ending: str, position: int) -> None:
    text = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"
    assert parse_message_id(text + ending) == (parse_id(text), position)


@pytest.mark.parametrize("ending", [".", ".-1", ".x", ".1.2", ".123456", ".١", " ", ".1 "])
def test_what_is_no_identity_of_a_message(ending: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_message_id("018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b" + ending)
    assert refused.value.field == "message_id"


def test_only_a_field_that_may_be_empty_is_told_to_be_left_empty() -> None:
    with pytest.raises(InvalidArgument, match=r"is not a UUID; use one like [0-9a-f-]{36}\.$"):
        parse_id("order-1")
    with pytest.raises(InvalidArgument, match="or leave it empty"):
        parse_id("order-1", optional=True)
