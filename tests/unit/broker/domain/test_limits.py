"""Every limit at one less, exactly, and one more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain import limits as rules
from broker.domain.limits import Limits
from broker.domain.message import Message
from broker.errors import ConfigurationError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = Limits()


def message(**rest: object) -> Message:
    return Message(**{"topic": "orders", "body": b"x", **rest})  # type: ignore[arg-type]


def check(**rest: object) -> None:
    LIMITS.check_message(message(**rest))


def properties_of(total: int) -> dict[str, str]:
    """Properties with this many bytes in names and values."""
    return {"n": "v" * (total - 1)}


AT_THE_EDGE: dict[str, tuple[Callable[[int], None], int, str]] = {
    "body": (lambda n: check(body=b"x" * n), 4 << 20, "body"),
    "property entries": (lambda n: check(properties={f"{i}": "" for i in range(n)}), 128, "properties"),
    "property bytes": (lambda n: check(properties=properties_of(n)), 16 << 10, "properties"),
    "property bytes with accents": (lambda n: check(properties={"é": "x" * (n - 2)}), 16 << 10, "properties"),
    "property bytes in many": (
        lambda n: check(properties={"a": "x" * 8000, "b": "y" * (n - 8002)}),
        16 << 10,
        "properties",
    ),
    "a single key": (lambda n: check(keys=("k" * n,)), 16 << 10, "keys"),
    "keys together": (lambda n: check(keys=("k" * 8000, "l" * (n - 8000))), 16 << 10, "properties"),
    "keys and properties": (
        lambda n: check(keys=("k" * 100,), properties=properties_of(n - 100)),
        16 << 10,
        "properties",
    ),
    "tag": (lambda n: check(tag="t" * n), 16 << 10, "tag"),
    "tag of two-byte letters and one": (lambda n: check(tag="é" * 8000 + "t" * (n - 16_000)), 16 << 10, "tag"),
    "a long tag and properties": (
        lambda n: check(tag="t" * 256, properties=properties_of(n - 256)),
        16 << 10,
        "properties",
    ),
    "a short tag beside properties": (
        lambda n: check(tag="t" * 255, properties=properties_of(n)),
        16 << 10,
        "properties",
    ),
    "message group": (lambda n: check(message_group="g" * n), 64, "message_group"),
    "message group of accents": (lambda n: check(message_group="é" * 31 + "g" * (n - 62)), 64, "message_group"),
    "topic name": (lambda n: check(topic="t" * n), 127, "topic"),
    "topic name alone": (lambda n: rules.check_topic_name("t" * n, "name"), 127, "name"),
    "group name": (lambda n: rules.check_group_name("g" * n, "group"), 120, "group"),
    "client id": (lambda n: rules.check_client_id("c" * n), 255, "client_id"),
    "reason": (lambda n: rules.check_reason("r" * n) and None, 500, "reason"),
    "items": (lambda n: LIMITS.check_items(n, "messages"), 4096, "messages"),
}


@pytest.mark.parametrize("name", AT_THE_EDGE)
def test_one_less_exactly_and_one_more(name: str) -> None:
    attempt, limit, field = AT_THE_EDGE[name]
    attempt(limit - 1)
    attempt(limit)
    with pytest.raises(InvalidArgument) as refused:
        attempt(limit + 1)
    assert refused.value.field == field
    assert refused.value.message[0].isupper() or refused.value.message[0].isdigit()


@pytest.mark.parametrize("field", ["max_body", "max_properties_bytes", "max_properties", "max_items"])
def test_other_limits_hold_as_set(field: str) -> None:
    own = Limits(**{field: 3})
    attempt: Callable[[int], None] = {
        "max_body": lambda n: own.check_message(message(body=b"x" * n)),
        "max_properties_bytes": lambda n: own.check_message(message(properties=properties_of(n))),
        "max_properties": lambda n: own.check_message(message(properties={f"{i}": "" for i in range(n)})),
        "max_items": lambda n: own.check_items(n, "messages"),
    }[field]
    attempt(3)
    with pytest.raises(InvalidArgument):
        attempt(4)


ALLOWED = "abcxyzABCXYZ0189-_%|"
BAD_NAMES = [
    *(
        "Orders ",
        " orders",
        "a b",
        "a\x00b",
        "\x00",
        "a\n",
        "a\t",
        "café",
        "naïve",
        "名前",
        "a.b",
        "a/b",
        "../a",
        "a\\b",
    ),
    *("a'b", 'a"b', "a;b", "a:b", "a@b", "a+b", "a*", "a,b", "a\x7f", "ª", "１", "a\u200b"),
]


@pytest.mark.parametrize("letter", ALLOWED)
def test_letters_of_names(letter: str) -> None:
    rules.check_topic_name(letter)
    rules.check_group_name(letter * 2, "group")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_with_other_characters(name: str) -> None:
    for attempt in (
        lambda: rules.check_topic_name(name),
        lambda: rules.check_group_name(name, "group"),
        lambda: check(topic=name),
    ):
        with pytest.raises(InvalidArgument) as refused:
            attempt()
        assert refused.value.reason == "NAME_INVALID"


@given(st.text(min_size=1, max_size=20))
def test_a_name_is_allowed_letters_or_refused(name: str) -> None:
    try:
        rules.check_topic_name(name)
    except InvalidArgument:
        assert set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_%|")
    else:
        assert name.isascii()


@pytest.mark.parametrize(
    ("attempt", "field"),
    [
        (lambda: check(body=b""), "body"),
        (lambda: check(topic=""), "topic"),
        (lambda: check(tag=""), "tag"),
        (lambda: check(message_group=""), "message_group"),
        (lambda: check(keys=("",)), "keys"),
        (lambda: check(keys=("fine", "")), "keys"),
        (lambda: check(properties={"": "x"}), "properties"),
        (lambda: rules.check_group_name("", "group"), "group"),
        (lambda: LIMITS.check_items(0, "messages"), "messages"),
    ],
)
def test_what_is_empty(attempt: Callable[[], None], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        attempt()
    assert refused.value.field == field


CONTROLS = ["\x00", "\x01", "\n", "\r", "\t", "\x1b", "\x1f", "\x7f"]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("field", ["tag", "message_group", "keys", "properties", "values", "client_id"])
def test_control_characters(field: str, control: str) -> None:
    bad = f"a{control}b"
    attempt: Callable[[], None] = {
        "tag": lambda: check(tag=bad),
        "message_group": lambda: check(message_group=bad),
        "keys": lambda: check(keys=("fine", bad)),
        "properties": lambda: check(properties={bad: "x"}),
        "values": lambda: check(properties={"fine": bad}),
        "client_id": lambda: rules.check_client_id(bad),
    }[field]
    with pytest.raises(InvalidArgument):
        attempt()
    assert rules.check_reason(bad) == "a b"


@pytest.mark.parametrize("text", ["naïve", "日本語", "🎉", "a b", "a ", "'", '"', "\\", "%", ";"])
def test_other_texts_are_welcome(text: str) -> None:
    check(tag=text, message_group=text, keys=(text,), properties={text: text})
    rules.check_client_id(text)
    assert rules.check_reason(text) == text


@pytest.mark.parametrize(("tag", "fine"), [("a", True), ("a|b", False), ("||", False), ("a||b", False)])
def test_a_tag_has_no_bar(tag: str, fine: bool) -> None:
    if fine:
        check(tag=tag)
        return
    with pytest.raises(InvalidArgument) as refused:
        check(tag=tag)
    assert refused.value.field == "tag"


@pytest.mark.parametrize(
    ("name", "fine"),
    [("halfmq.", False), ("halfmq.reason", False), ("halfmq", True), ("Halfmq.x", True), ("x.halfmq.y", True)],
)
def test_the_brokers_own_properties(name: str, fine: bool) -> None:
    if fine:
        check(properties={name: "x"})
        return
    with pytest.raises(InvalidArgument) as refused:
        check(properties={name: "x"})
    assert refused.value.field == "properties"


@pytest.mark.parametrize(("value", "fine"), [(0, False), (1, True), (15 << 20, True), ((15 << 20) + 1, False)])
def test_a_largest_body_the_tables_can_hold(value: int, fine: bool) -> None:
    if fine:
        assert Limits(max_body=value).max_body == value
        return
    with pytest.raises(ConfigurationError) as refused:
        Limits(max_body=value)
    assert refused.value.field == "max_body"


def test_the_defaults_are_rocketmqs() -> None:
    assert (LIMITS.max_body, LIMITS.max_properties_bytes, LIMITS.max_properties) == (4 << 20, 16 << 10, 128)
    assert (rules.MAX_TOPIC_NAME, rules.MAX_GROUP_NAME) == (127, 120)


def test_a_field_is_named_as_seen_from_the_request() -> None:
    with pytest.raises(InvalidArgument) as refused:
        check(tag="")
    assert refused.value.within("messages[3]").field == "messages[3].tag"
