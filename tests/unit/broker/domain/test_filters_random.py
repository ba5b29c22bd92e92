"""Filters made by chance: against a slow evaluator that follows the rules word by word, and against SQLite."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import dataclass, field
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.domain.filters import FilterKind, compile_filter
from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Message:
    topic: str = "orders"
    queue_no: int = 3
    offset: int = 5
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    message_group: str | None = None
    priority: int = 4
    size: int = 7
    born_at: int = 1_700_000_000_000_000
    stored_at: int = 1_700_000_001_000_000
    transaction_id: bytes = bytes(16)
    position: int = 0


Number = int | float


def matches(expression: str, message: Message) -> bool:
    return compile_filter(FilterKind.SQL, expression).matches(message)


def outcome(expression: str, message: Message) -> bool | None:
    """True, False or None for unknown, from the outside."""
    if matches(expression, message):
        return True
    return False if matches(f"NOT ({expression})", message) else None


# Any text at all.

WORDS = """
a b "c d" `e` TAGS halfmq.topic halfmq.size halfmq."x" 1 -1 .5 1e5 1e400 'x' '' 'a%_' '!' TRUE FALSE NULL AND OR NOT IS
IN LIKE ESCAPE BETWEEN = <> != < <= > >= + - * / ( ) , IN( 'x'ESCAPE'!' ; -- /* */ # ? :p @v $1 % || | :: { } [ ] \\ " '
` ~ ! ^ & SELECT CASE WHEN THEN END FROM CAST( f( . .. ß İ ſ ²
"""
FRAGMENTS = st.sampled_from([*WORDS.split(), "", "\0", "\t", "\n", "\xa0", "\ud800"])
ANY_TEXT = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(codec=None), max_size=40),
    st.text(st.sampled_from("ab1'\"`()<>=!-+*/.,% \n"), max_size=60),
    st.lists(FRAGMENTS, max_size=20).map(" ".join),
    st.lists(FRAGMENTS, max_size=20).map("".join),
)
ANY_STRING = st.text(st.characters(codec=None), max_size=20)
ANY_NUMBER = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([10**400, -(10**400)])
ANY_PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "b", "c d", "e", "halfmq.x", "TAGS"]) | ANY_STRING,
    st.one_of(ANY_STRING, ANY_NUMBER.map(str), st.floats().map(str), st.sampled_from(["true", "FALSE", "9" * 5000])),
)
ANY_MESSAGE = st.builds(
    Message,
    topic=ANY_STRING,
    queue_no=ANY_NUMBER,
    offset=ANY_NUMBER,
    tag=st.none() | ANY_STRING,
    keys=st.lists(ANY_STRING, max_size=3).map(tuple),
    properties=ANY_PROPERTIES,
    message_group=st.none() | ANY_STRING,
    priority=ANY_NUMBER,
    size=ANY_NUMBER,
    born_at=ANY_NUMBER,
    stored_at=ANY_NUMBER,
    transaction_id=st.binary(min_size=16, max_size=16),
    position=ANY_NUMBER,
)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(FilterKind), ANY_TEXT, ANY_MESSAGE)
@example(FilterKind.SQL, "a IN (1) - b", Message())
def test_any_text_is_a_filter_or_refused(kind: FilterKind, text: str, message: Message) -> None:
    try:
        made = compile_filter(kind, text)
    except InvalidArgument as refused:
        assert refused.reason == "FILTER_INVALID"
        found = re.match(r"The filter is wrong at character (\d+): [^\n]+\. This one is right: ", refused.message)
        assert found is not None
        assert 1 <= int(found[1]) <= len(text) + 1
        refused.message.encode()
    else:
        assert made.matches(message) in {True, False}


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["(", "NOT ", "-", "- ", "a IN (", "a = (", "a AND (", "'", "''", '"', "a.", "a BETWEEN ", "a = "]),
    ANY_TEXT,
)
def test_a_repeated_start_is_a_filter_or_refused(start: str, text: str) -> None:
    with contextlib.suppress(InvalidArgument):
        compile_filter(FilterKind.SQL, (start * 4096)[:4090] + text[:6])


# Parts of filters that are made by chance. Each knows its text, and its own meaning, slowly and word by word.


class Refused(Exception):
    """The rules do not allow this filter."""


@dataclass(frozen=True)
class Part:
    text: str
    kind: str  # of a value: property, text, number, boolean or null; of a condition: what holds it together
    value: Callable[[Message], Any] = field(repr=False)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def within(part: Part, *kinds: str) -> str:
    """The text, in parentheses if the part is of one of these kinds."""
    return f"({part.text})" if part.kind in kinds else part.text


def number_of(text: str | None) -> Number | None:
    if text is None or not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return None
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else finite(float(text))


def finite(number: Number) -> Number | None:
    return None if number in {float("inf"), float("-inf")} else number


def read_as(kind: str, part: Part, message: Message) -> Any:
    value = part.value(message)
    if part.kind not in {"property", "text"} or value is None:
        return value
    return number_of(value) if kind == "number" else {"true": True, "false": False}.get(value.lower())


def a_property(name: str) -> Part:
    return Part(name, "property", lambda message: message.properties.get(name))


def a_text(text: str) -> Part:
    return Part(quoted(text), "text", lambda _: text)


def a_number(text: str) -> Part:
    return Part(text, "number", lambda _: number_of(text))


NULL = Part("NULL", "null", lambda _: None)
TRUE = Part("TRUE", "boolean", lambda _: True)
FALSE = Part("FALSE", "boolean", lambda _: False)
SIZE = Part("halfmq.size", "number", lambda message: message.size)
TOPIC = Part("halfmq.topic", "text", lambda message: message.topic)
TAGS = Part("TAGS", "text", lambda message: message.tag)


def divide(left: Number, right: Number) -> Number | None:
    if right == 0:
        return None
    exact = isinstance(left, int) and isinstance(right, int) and left % right == 0
    return left // right if exact else left / right


def calculated(sign: str, *operands: Part) -> Part:
    def value(message: Message) -> Any:
        if not {part.kind for part in operands} <= {"property", "number", "null", "sum"}:
            raise Refused
        numbers = [read_as("number", part, message) for part in operands]
        if None in numbers:
            return None
        if len(numbers) == 1:
            return -numbers[0]
        found = {"+": add, "-": sub, "*": mul, "/": divide}[sign](*numbers)
        return found if found is None else finite(found)

    # Without parentheses on the left where the order makes none necessary.
    tight = {"sum"} if sign in {"*", "/", "minus"} else set()
    texts = [within(operands[0], *tight), *(within(part, "sum") for part in operands[1:])]
    return Part(f"- {texts[0]}" if sign == "minus" else f" {sign} ".join(texts), "sum", value)


TESTS = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def compared(sign: str, left: Part, right: Part, message: Message) -> bool | None:
    kinds = {"number" if part.kind == "sum" else part.kind for part in (left, right)}
    one, other = left.value(message), right.value(message)
    if "boolean" in kinds:
        if "number" in kinds or sign not in {"=", "<>"}:
            raise Refused
        one, other = read_as("boolean", left, message), read_as("boolean", right, message)
    elif "number" in kinds:
        one, other = read_as("number", left, message), read_as("number", right, message)
    elif kinds == {"property"} and None not in {number_of(one), number_of(other)}:
        one, other = number_of(one), number_of(other)
    if one is None or other is None or "null" in kinds:
        return None
    return bool(TESTS[sign](one, other))


def negated_if(negated: bool, result: bool | None) -> bool | None:
    return result if result is None or not negated else not result


def all_of(results: list[bool | None]) -> bool | None:
    return False if False in results else None if None in results else True


def any_of(results: list[bool | None]) -> bool | None:
    return True if True in results else None if None in results else False


def comparison(sign: str, left: Part, right: Part) -> Part:
    text = f"{left.text} {sign} {right.text}"
    return Part(text, "predicate", lambda message: compared(sign, left, right, message))


def between(negated: bool, value: Part, low: Part, high: Part) -> Part:
    return Part(
        f"{value.text} {'NOT ' * negated}BETWEEN {low.text} AND {high.text}",
        "predicate",
        lambda message: negated_if(
            negated, all_of([compared(">=", value, low, message), compared("<=", value, high, message)])
        ),
    )


def is_in(negated: bool, value: Part, items: list[Part]) -> Part:
    return Part(
        f"{value.text} {'NOT ' * negated}IN ({', '.join(item.text for item in items)})",
        "predicate",
        lambda message: negated_if(negated, any_of([compared("=", value, item, message) for item in items])),
    )


def is_null(negated: bool, value: Part) -> Part:
    text = f"{value.text} IS {'NOT ' * negated}NULL"
    return Part(text, "predicate", lambda message: negated_if(negated, value.value(message) is None))


def like(negated: bool, value: Part, pattern: str, escape: str) -> Part:
    def fits_pattern(message: Message) -> bool | None:
        text = value.value(message)
        fitting = fits(text or "", pattern, escape)
        return None if text is None else negated_if(negated, fitting)

    ending = f" ESCAPE {quoted(escape)}" if escape else ""
    return Part(f"{value.text} {'NOT ' * negated}LIKE {quoted(pattern)}{ending}", "predicate", fits_pattern)


def fits(text: str, pattern: str, escape: str) -> bool:
    """By a regular expression, which the broker must not use: some of them take years."""
    expression = ""
    characters: Iterator[str] = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, "")
            if following not in {"%", "_", escape}:
                raise Refused
            expression += re.escape(following)
        else:
            expression += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return re.fullmatch(expression, text, re.DOTALL) is not None


def holds(value: Part) -> Part:
    return Part(value.text, "predicate", lambda message: read_as("boolean", value, message))


def negation(part: Part) -> Part:
    return Part(f"NOT {within(part, 'and', 'or')}", "not", lambda message: negated_if(True, part.value(message)))


def conjunction(parts: list[Part]) -> Part:
    text = " AND ".join(within(part, "or") for part in parts)
    return Part(text, "and", lambda message: all_of([part.value(message) for part in parts]))


def disjunction(parts: list[Part]) -> Part:
    text = " OR ".join(part.text for part in parts)
    return Part(text, "or", lambda message: any_of([part.value(message) for part in parts]))


def arithmetic(leaves: st.SearchStrategy[Part], signs: str) -> st.SearchStrategy[Part]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(calculated, st.just("minus"), inner),
            st.builds(calculated, st.sampled_from(signs), inner, inner),
        ),
        max_leaves=5,
    )


def predicates(values: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.one_of(
        st.builds(comparison, st.sampled_from(list(TESTS)), values, values),
        st.builds(between, st.booleans(), values, values, values),
        st.builds(is_in, st.booleans(), values, st.lists(values, min_size=1, max_size=3)),
        st.builds(is_null, st.booleans(), values),
    )


def conditions(leaves: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(negation, inner),
            st.builds(conjunction, st.lists(inner, min_size=2, max_size=3)),
            st.builds(disjunction, st.lists(inner, min_size=2, max_size=3)),
        ),
        max_leaves=8,
    )


CONSTANT_CONDITIONS = st.sampled_from([holds(NULL), holds(TRUE), holds(FALSE)])
TEXTS = ["", "a", "b", "ab", "aB", "a%", "%b", "_", "a_b", "!%", "12", "12.0", "-3", "true", "False", "it's"]
NUMBERS = ["0", "1", "2", "3", "7", "12", "12.0", "0.5", "1e2", "9007199254740993"]
MORE_NUMBERS = ["-1", "+2", ".5", "7.", "1e308", "1e400", "nan", " 1", "TRUE"]

# All kinds of values, against the meaning above.

ANY_PROPERTY = st.builds(a_property, st.sampled_from("pqrs"))
ANY_CONSTANT = st.builds(a_number, st.sampled_from(NUMBERS))
VALUES = st.one_of(
    ANY_PROPERTY,
    ANY_CONSTANT,
    st.builds(a_text, st.sampled_from(TEXTS)),
    st.sampled_from([SIZE, TOPIC, TAGS, NULL, TRUE, FALSE]),
    arithmetic(st.one_of(ANY_PROPERTY, ANY_CONSTANT, st.sampled_from([SIZE, NULL])), "+-*/"),
)
PATTERNS = st.text(st.sampled_from("ab%_!'"), max_size=5)
CONDITIONS = conditions(
    st.one_of(
        predicates(VALUES),
        st.builds(like, st.booleans(), ANY_PROPERTY, PATTERNS, st.sampled_from(["", "!", "%", "a"])),
        st.builds(like, st.booleans(), st.sampled_from([TAGS, TOPIC]), PATTERNS, st.just("")),
        st.builds(holds, ANY_PROPERTY),
        CONSTANT_CONDITIONS,
    )
)
MESSAGES = st.builds(
    Message,
    tag=st.none() | st.sampled_from(TEXTS),
    topic=st.sampled_from(TEXTS),
    size=st.integers(0, 12),
    properties=st.dictionaries(st.sampled_from("pqr"), st.sampled_from(TEXTS + NUMBERS + MORE_NUMBERS)),
)


@settings(max_examples=500, deadline=None)
@given(CONDITIONS, MESSAGES)
def test_a_filter_means_what_the_rules_say(condition: Part, message: Message) -> None:
    try:
        expected = condition.value(message)
    except Refused:
        with pytest.raises(InvalidArgument):
            compile_filter(FilterKind.SQL, condition.text)
    else:
        assert outcome(condition.text, message) is expected


# Against SQLite: texts with texts and numbers with numbers, because it reads one as the other by rules of its own. For
# the same reason no two properties that hold texts look like numbers, and there is no division.

TEXT_COLUMNS = st.sampled_from([a_property("p"), a_property("q"), TAGS, TOPIC])
NUMBER_COLUMNS = st.sampled_from([a_property("n"), a_property("m"), SIZE])
PLAIN_TEXTS = ["", "a", "b", "ab", "aB", "a%b", "_", "it's", "b!"]
PLAIN_NUMBERS = ["-3", "0", "1", "2", "7", "12", "0.5"]
ESCAPED = st.lists(st.sampled_from(["a", "b", "!%", "!_", "!!", "%", "_"]), max_size=4).map("".join)
SQLITE_CONDITIONS = conditions(
    st.one_of(
        predicates(st.one_of(TEXT_COLUMNS, st.builds(a_text, st.sampled_from(TEXTS)), st.just(NULL))),
        predicates(
            arithmetic(
                st.one_of(NUMBER_COLUMNS, st.builds(a_number, st.sampled_from(PLAIN_NUMBERS[1:])), st.just(NULL)), "+-*"
            )
        ),
        st.builds(like, st.booleans(), TEXT_COLUMNS, st.text(st.sampled_from("abB%_"), max_size=5), st.just("")),
        st.builds(like, st.booleans(), TEXT_COLUMNS, ESCAPED, st.just("!")),
        CONSTANT_CONDITIONS,
    )
)


@settings(max_examples=500, deadline=None)
@given(
    SQLITE_CONDITIONS,
    st.dictionaries(st.sampled_from("pq"), st.sampled_from(PLAIN_TEXTS)),
    st.dictionaries(st.sampled_from("nm"), st.sampled_from(PLAIN_NUMBERS)),
    st.none() | st.sampled_from(PLAIN_TEXTS),
)
def test_a_filter_means_what_sqlite_says(
    condition: Part, texts: dict[str, str], numbers: dict[str, str], tag: str | None
) -> None:
    properties = texts | numbers
    row = [*(properties.get(name) for name in "pqnm"), tag, "ab", 7]
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute(
            "CREATE TABLE halfmq (p TEXT, q TEXT, n NUMERIC, m NUMERIC, TAGS TEXT, topic TEXT, size NUMERIC)"
        )
        database.execute("INSERT INTO halfmq VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        (found,) = database.execute(f"SELECT {condition.text} FROM halfmq").fetchone()
    message = Message(properties=properties, tag=tag, topic="ab", size=7)
    assert outcome(condition.text, message) is (None if found is None else bool(found))


@given(st.text("ab%_!\n\U0001f34e", max_size=12), st.text("ab\n\U0001f34e", max_size=12))
def test_a_pattern_means_what_the_regular_expression_says(pattern: str, text: str) -> None:
    assert matches(f"p LIKE {quoted(pattern)}", Message(properties={"p": text})) is fits(text, pattern, "")
