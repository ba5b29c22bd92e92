"""What filters let through."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from broker.domain import filters
from broker.domain.filters import Filter, FilterKind, Subject, compile_filter
from broker.domain.ids import format_id


@dataclass(frozen=True)
class Message:
    topic: str = "orders"
    queue_no: int = 3
    offset: int = 1_000
    tag: str | None = "paid"
    keys: tuple[str, ...] = ("k1", "k2")
    properties: dict[str, str] = field(default_factory=dict)
    message_group: str | None = "customer 7"
    priority: int = 4
    size: int = 120
    born_at: int = 1_700_000_000_123_999
    stored_at: int = 1_700_000_001_456_000
    transaction_id: bytes = bytes(range(16))
    position: int = 0


def tag(expression: str) -> Filter:
    return compile_filter(FilterKind.TAG, expression)


def sql(expression: str) -> Filter:
    return compile_filter(FilterKind.SQL, expression)


def with_tag(value: str | None) -> Subject:
    return Message(tag=value)


APPLE = Message(
    properties={
        "color": "red",
        "price": "12",
        "weight": "0.25",
        "huge": "9007199254740993",
        "infinite": "1e999",
        "fresh": "TRUE",
        "rotten": "false",
        "empty": "",
        "name": "O'Hara_50%",
        "Name": "another",
        "order-id": "A-1",
        "order.id": "A-2",
        'quo"te`s': "yes",
        "größe": "5",
        "order": "8",
        "date": "2026-01-02",
        "TAGS": "a property",
        "halfmq": "not a qualifier",
        "halfmq.origin-topic": "before",
        "halfmq.attempts": "17",
    }
)

# For each expression whether it is true for the apple (T), false (F) or unknown (U).
OUTCOMES = {
    # Comparisons of texts.
    "color = 'red'": "T",
    "color = 'Red'": "F",
    "color <> 'red'": "F",
    "color != 'blue'": "T",
    "color < 'ree'": "T",
    "color <= 'red'": "T",
    "color > 'Z'": "T",
    "color >= 'ree'": "F",
    "'red' = color": "T",
    "'a' < 'b'": "T",
    "empty = ''": "T",
    "name = 'O''Hara_50%'": "T",
    "price = '12'": "T",
    "price = '12.0'": "F",
    "price < '9'": "T",
    # With numbers.
    "price = 12": "T",
    "price = 12.0": "T",
    "price=1.2E1": "T",
    "price > 9": "T",
    "9 < price": "T",
    "price < 9": "F",
    "price <> -12": "T",
    "weight = .25": "T",
    "weight < 1.": "T",
    "huge = 9007199254740993": "T",
    "huge = 9007199254740992": "F",
    "huge > 9007199254740992": "T",
    "color > 10": "U",
    "color <> 10": "U",
    "empty = 0": "U",
    "infinite > 1": "U",
    "missing > 10": "U",
    "'12' = 12": "T",
    "12 = '12'": "T",
    "'x' = 12": "U",
    "1 = 1.0": "T",
    "-5 < - 4": "T",
    "- -5 = 5": "T",
    "halfmq.size = '120'": "T",
    "halfmq.size = 'large'": "U",
    # Two properties.
    "price > weight": "T",
    "price = price": "T",
    "color = name": "F",
    "price < color": "T",
    "price = missing": "U",
    "missing = missing": "U",
    "halfmq.topic = color": "F",
    "halfmq.priority < price": "T",
    # TRUE, FALSE, and properties as conditions.
    "TRUE": "T",
    "false": "F",
    "NULL": "U",
    "fresh": "T",
    "rotten": "F",
    "color": "U",
    "missing": "U",
    "fresh = true": "T",
    "fresh <> TRUE": "F",
    "TRUE = rotten": "F",
    "color = TRUE": "U",
    "TRUE = FALSE": "F",
    "'true' = TRUE": "T",
    "fresh AND NOT rotten": "T",
    # NULL.
    "missing IS NULL": "T",
    "missing is not null": "F",
    "color IS NULL": "F",
    "color IS NOT NULL": "T",
    "NULL IS NULL": "T",
    "5 IS NULL": "F",
    "color + 1 IS NULL": "T",
    "color = NULL": "U",
    "NULL <> NULL": "U",
    "NULL = TRUE": "U",
    "NULL + 1 = 1": "U",
    "NOT NULL": "U",
    # AND, OR and NOT.
    "TRUE AND TRUE": "T",
    "TRUE AND NULL": "U",
    "NULL AND NULL": "U",
    "NULL AND FALSE": "F",
    "FALSE AND NULL": "F",
    "FALSE OR NULL": "U",
    "NULL OR NULL": "U",
    "TRUE OR NULL": "T",
    "NULL OR TRUE": "T",
    "FALSE OR FALSE": "F",
    "TRUE OR FALSE AND FALSE": "T",
    "(TRUE OR FALSE) AND FALSE": "F",
    "NOT FALSE AND FALSE": "F",
    "NOT color = 'blue' AND price = 12": "T",
    "NOT NOT color = 'red'": "T",
    "NOT (color = 'red' OR missing = 1)": "F",
    "((color) = (('red')))": "T",
    "color = 'red' and price = 12 And weight = 1": "F",
    # BETWEEN.
    "price BETWEEN 12 AND 13": "T",
    "price BETWEEN 13 AND 12": "F",
    "price NOT BETWEEN 1 AND 5": "T",
    "price between 5 + 5 and 2 * 6": "T",
    "price BETWEEN 1 AND 20 AND color = 'red'": "T",
    "price BETWEEN NULL AND 5": "F",
    "price BETWEEN NULL AND 50": "U",
    "price NOT BETWEEN 20 AND NULL": "T",
    "missing BETWEEN 1 AND 5": "U",
    "color BETWEEN 'r' AND 's'": "T",
    "price BETWEEN -5 AND (30)": "T",
    # IN.
    "color IN ('blue', 'red')": "T",
    "color IN ('blue')": "F",
    "color NOT IN ('blue')": "T",
    "missing IN ('blue')": "U",
    "price IN (1, 12.0)": "T",
    "price IN (1, 2)": "F",
    "color IN (1, 2)": "U",
    "color IN ('blue', NULL)": "U",
    "color IN ('red', NULL)": "T",
    "color NOT IN ('blue', NULL)": "U",
    "color IN (weight, name, color)": "T",
    "price IN ('x', 6 + 6)": "T",
    "fresh IN (FALSE, TRUE)": "T",
    "5 IN (5, 6)": "T",
    "'a' IN ('a')": "T",
    "NULL IN (1)": "U",
    "halfmq.queue IN (1, 2, 3)": "T",
    # LIKE.
    "color LIKE 'red'": "T",
    "color LIKE 'RED'": "F",
    "color LIKE 're'": "F",
    "color LIKE 'r%'": "T",
    "color LIKE '%d'": "T",
    "color LIKE 'r%d'": "T",
    "color LIKE 're%ed'": "F",
    "color LIKE '%e%'": "T",
    "color LIKE '%e%e%'": "F",
    "color LIKE '_ed'": "T",
    "color LIKE '__'": "F",
    "color LIKE '%_e_%'": "T",
    "color LIKE '%'": "T",
    "color LIKE '%%%'": "T",
    "color LIKE ''": "F",
    "empty LIKE ''": "T",
    "empty LIKE '%'": "T",
    "empty LIKE '_'": "F",
    "color NOT LIKE 'b%'": "T",
    "color NOT LIKE 'r%'": "F",
    "missing LIKE '%'": "U",
    "NULL LIKE '%'": "U",
    "name LIKE '%50!%' ESCAPE '!'": "T",
    "name LIKE 'O''Hara!_50_' ESCAPE '!'": "T",
    "name NOT LIKE '%!_%' ESCAPE '!'": "F",
    "name LIKE '%!__!%' ESCAPE '!'": "F",
    "name LIKE '%\\_50%' ESCAPE '\\' AND color = 'red'": "T",
    "color LIKE 'r[ed]*'": "F",
    "halfmq.topic LIKE 'ord%'": "T",
    "price LIKE '1_'": "T",
    "color CONTAINS 'e'": "T",
    "color contains 'E'": "F",
    "color CONTAINS ''": "T",
    "color CONTAINS '%'": "F",
    "name CONTAINS '_50'": "T",
    "color NOT CONTAINS 'x'": "T",
    "NOT color CONTAINS 'x'": "T",
    "missing CONTAINS 'x'": "U",
    "missing NOT CONTAINS 'x'": "U",
    "NULL CONTAINS ''": "U",
    "color STARTSWITH 're'": "T",
    "color STARTSWITH 'ed'": "F",
    "color NOT STARTSWITH 'ed'": "T",
    "color ENDSWITH 'ed'": "T",
    "color EndsWith 're' OR color LIKE 'r%'": "T",
    "color NOT ENDSWITH 're' AND price CONTAINS '1'": "T",
    "halfmq.topic STARTSWITH 'ord'": "T",
    # Arithmetic.
    "price + 1 = 13": "T",
    "price - 2 - 3 = 7": "T",
    "price - (2 - 3) = 13": "T",
    "2 + price * 2 = 26": "T",
    "(2 + price) * 2 = 28": "T",
    "price / 5 = 2.4": "T",
    "price / 5 * 5 = 12": "T",
    "price/4=3": "T",
    "-price < -11": "T",
    "-price + 13 = 1": "T",
    "-(price - 13) = 1": "T",
    "price * -1 = -12": "T",
    "price - -1 = 13": "T",
    "huge * 10 / 10 = 9007199254740993": "T",
    "huge + 0 = 9007199254740993": "T",
    "price / 0 = 1": "U",
    "price / 0.0 = 1": "U",
    "0 / 0 IS NULL": "T",
    "color * 2 = 2": "U",
    "-color = 2": "U",
    "missing - 1 < 5": "U",
    "1e308 * 10 > 1": "U",
    "1e308 + 1e308 > 1": "U",
    "-1e308 - 1e308 < 1": "U",
    f"{10**300} * {10**300} > 1": "U",
    f"{10**308} + 0.5 > 1": "T",
    f"{17 * 10**307} + 1e308 > 1": "U",
    f"1e308 - -{17 * 10**307} > 1": "U",
    f"{10**308} / 0.1 > 1": "U",
    f"{10**308 + 1} / 2 > 1": "T",
    f"0.1 * {10**308} > 1": "T",
    "halfmq.born_at - halfmq.stored_at < 0": "T",
    # Names.
    "Name = 'another'": "T",
    "NAME IS NULL": "T",
    "\"color\" = 'red'": "T",
    "`color` = 'red'": "T",
    "\"order-id\" = 'A-1'": "T",
    "`order-id` = 'A-1'": "T",
    "order-id IS NULL": "T",
    "\"order.id\" = 'A-2'": "T",
    '"quo""te`s" = \'yes\'': "T",
    "`quo\"te``s` = 'yes'": "T",
    "größe = 5": "T",
    "order = 8 AND date > '2026'": "T",
    "a$b_1 IS NULL": "T",
    '"CASE" IS NULL': "T",
    '"NULL" IS NULL': "T",
    "TAGS = 'paid'": "T",
    "\"TAGS\" = 'paid'": "T",
    "tags IS NULL": "T",
    "halfmq = 'not a qualifier'": "T",
    "halfmq.topic = 'orders'": "T",
    "\"halfmq\".`topic` = 'orders'": "T",
    "halfmq . topic = 'orders'": "T",
    "halfmq.queue = 3": "T",
    "halfmq.offset = 1000": "T",
    "halfmq.tag = 'paid'": "T",
    "halfmq.keys = 'k1 k2'": "T",
    "halfmq.message_group = 'customer 7'": "T",
    "halfmq.priority = 4": "T",
    "halfmq.size BETWEEN 100 AND 200": "T",
    "halfmq.born_at = 1700000000123": "T",
    "halfmq.stored_at = 1700000001456": "T",
    "halfmq.message_id = '00010203-0405-0607-0809-0a0b0c0d0e0f'": "T",
    "\"halfmq.origin-topic\" = 'before'": "T",
    "halfmq.\"origin-topic\" = 'before'": "T",
    "`halfmq`.`origin-topic` = 'before'": "T",
    'halfmq."attempts" > 16': "T",
    'halfmq."nothing" IS NULL': "T",
    # Blanks.
    "\n color\t=\r\n'red' ": "T",
    "color='red'AND price>10": "T",
}


@pytest.mark.parametrize(("expression", "outcome"), OUTCOMES.items(), ids=OUTCOMES)
def test_an_expression_is_true_false_or_unknown(expression: str, outcome: str) -> None:
    assert sql(expression).matches(APPLE) is (outcome == "T")
    assert sql(f"NOT ({expression})").matches(APPLE) is (outcome == "F")


def test_what_a_message_does_not_have_is_null() -> None:
    bare = Message(tag=None, keys=(), message_group=None)
    for name in ("TAGS", "halfmq.tag", "halfmq.keys", "halfmq.message_group", "color"):
        assert sql(f"{name} IS NULL").matches(bare)
        assert not sql(f"{name} = 'x' OR {name} <> 'x'").matches(bare)


def test_numbers_beyond_all_bounds_are_unknown() -> None:
    """No message has them, but a filter must not fail even then."""
    message = Message(size=10**400, offset=-(10**400))
    for expression in ("halfmq.size + 0.5 > 1", "halfmq.size / 3 > 1", "halfmq.offset * halfmq.size < 0"):
        assert not sql(expression).matches(message)
        assert not sql(f"NOT ({expression})").matches(message)
    assert sql("halfmq.size > 1e308").matches(message)


def test_further_messages_of_a_transaction_have_a_number_in_their_id() -> None:
    name = f"{format_id(bytes(range(16)))}.2"
    assert sql(f"halfmq.message_id = '{name}'").matches(Message(position=2))
    assert not sql(f"halfmq.message_id = '{name}'").matches(Message())


@pytest.mark.parametrize(
    ("text", "is_number"),
    {
        "12": True,
        "+12": True,
        "-12": True,
        "012": True,
        "12.": True,
        ".5": True,
        "-1.5e-3": True,
        "1E5": True,
        "1" * 308: True,
        "9" * 309: False,
        "9" * 5000: False,
        "0" * 5000: False,
        "1e309": False,
        "": False,
        " 12": False,
        "12 ": False,
        "1_000": False,
        "0x10": False,
        "1,5": False,
        "e5": False,
        ".": False,
        "-": False,
        "nan": False,
        "inf": False,
        "Infinity": False,
        "١٢": False,
        "１２": False,
        "²": False,
        "12L": False,
        "\ud800": False,
    }.items(),
)
def test_what_reads_as_a_number(text: str, is_number: bool) -> None:
    message = Message(properties={"n": text})
    assert sql("n + 0 IS NOT NULL").matches(message) is is_number
    assert sql("n > 0 OR n <= 0").matches(message) is is_number


@pytest.mark.parametrize(
    ("expression", "passing", "failing"),
    [
        ("*", ["A", "", "*", None], []),
        (" * ", ["A", None], []),
        ("A", ["A"], ["a", "AA", "", None]),
        ("A || B||C", ["A", "B", "C"], ["A || B", "D", None]),
        ("\n A \t||\r B ", ["A", "B"], [" A ", None]),
        ("A || A", ["A"], ["B"]),
        # As RocketMQ's: nothing between two separators is no tag.
        ("A||||B || ", ["A", "B"], ["", None]),
        ("two words || größe || TAG*", ["two words", "größe", "TAG*"], ["two", "TAGS"]),
        ("\ud800", ["\ud800"], ["x"]),
        ("é" * 127, ["é" * 127], []),
    ],
)
def test_tags(expression: str, passing: list[str | None], failing: list[str | None]) -> None:
    wanted = tag(expression)
    assert [value for value in passing + failing if wanted.matches(with_tag(value))] == passing


def test_a_filter_tells_what_it_was_made_from() -> None:
    made = sql("  color = 'red'\n")
    assert (made.kind, made.expression) == (FilterKind.SQL, "color = 'red'")
    assert made == sql("color = 'red'")
    assert made != sql("color = 'blue'")
    assert repr(tag("A||B ")) == "Filter(kind=<FilterKind.TAG: 1>, expression='A||B')"
    assert len({made, sql("color = 'red'"), tag("A")}) == 2


def test_long_expressions() -> None:
    """Chains are loops and not calls inside calls, however the parser nests them."""
    longest = 4096
    for chain, times in (
        ("price = 12 AND ", 270),
        ("color = 'blue' OR ", 220),
        ("color <> 'x' AND NOT weight > 5 AND ", 110),
    ):
        assert sql(chain * times + "price = 12").matches(APPLE)
    assert sql("price - 12 = " + "-".join(["0"] * 2000)).matches(APPLE)
    assert sql("price = 12" + "*1" * 2000).matches(APPLE)
    assert sql("price IN (" + ",".join(str(number) for number in range(1000)) + ")").matches(APPLE)
    assert sql("color = 'red' OR color = '".ljust(longest - 1, "x") + "'").matches(APPLE)
    assert sql("(" * 20 + "price" + ")" * 20 + " = 12").matches(APPLE)
    assert sql("NOT " * 20 + "color = 'red'").matches(APPLE)
    assert sql("NOT (price = 12 AND (color = 'blue' OR " * 6 + "FALSE" + "))" * 6)


def test_a_pattern_cannot_take_long() -> None:
    """Trying it at each character would take minutes, which the time limit of the tests would end."""
    value = Message(properties={"v": "a" * 16_384})
    for pattern in ("%" + "a_" * 1900 + "b", "%a" * 1900 + "%b", "%a_" * 1300 + "%b", "%" + "_" * 3900 + "b%"):
        worst = sql(f"v LIKE '{pattern}'")
        for _ in range(30):
            assert not worst.matches(value)


def test_only_filters_in_sql_load_the_parser() -> None:
    code = (
        "import sys; from broker.domain.filters import *; "
        "compile_filter(FilterKind.TAG, 'A || B'); print('sqlglot' in sys.modules); "
        "compile_filter(FilterKind.SQL, 'a = 1'); print('sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_exported_names() -> None:
    assert sorted(filters.__all__) == ["Filter", "FilterKind", "MAX_FILTER", "MAX_TAGS", "Subject", "compile_filter"]
    assert {name: kind.value for name, kind in FilterKind.__members__.items()} == {"TAG": 1, "SQL": 2}
