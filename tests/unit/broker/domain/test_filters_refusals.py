"""What is no filter: every refusal names the character, the reason, and something that is right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlglot import ParseError, exp

from broker.domain.filters import FilterKind, compile_filter, sql
from broker.domain.filters.fields import SYSTEM_FIELDS
from broker.errors import InvalidArgument


def refusal(kind: FilterKind, expression: str) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(kind, expression, field="subscription.filter")
    return caught.value


OPERATOR = "an operator such as = or AND is expected here, not {!r}"
JOINT = "AND or OR is expected here, not {!r}"
VALUE = "a value is expected here, not {!r}"
CONDITION = "a value or a condition is expected here, not {!r}"
NO_OPERATOR = "{!r} is no operator of a filter"
NO_PARAMETER = "{!r} is not allowed; there are no parameters, write the value itself"
CHAINED = "a comparison cannot be compared; join conditions with AND or OR"
COMPOSED = "a condition cannot be compared or calculated with; AND, OR and NOT join conditions"
NO_SYSTEM_FIELD = (
    "there is no system field {!r}, only halfmq.topic, halfmq.queue, halfmq.offset, halfmq.tag, halfmq.keys,"
    " halfmq.message_group, halfmq.priority, halfmq.size, halfmq.born_at, halfmq.stored_at, halfmq.message_id; a"
    ' property with a dot in its name needs quotes, like "order.id" or halfmq."origin-topic"'
)
BETWEEN = "AND is expected here, as in x BETWEEN 1 AND 5"

# For each expression the character at fault, from 1, and what is wrong there.
SQL_REFUSALS: dict[str, tuple[int, str]] = {
    # Unfinished.
    "": (1, "it is empty"),
    " \n": (1, "it is empty"),
    "color =": (8, "a value is missing at the end"),
    "color =  \n": (8, "a value is missing at the end"),
    "color = 'red' AND": (18, "a value or a condition is missing at the end"),
    "NOT": (4, "a value or a condition is missing at the end"),
    "a IN": (5, "a list such as (1, 2) is missing at the end"),
    "a IN (": (7, "a value is missing at the end"),
    "a IN (1,": (9, "a value is missing at the end"),
    "a NOT": (6, "IN, LIKE or BETWEEN is missing at the end"),
    "a IS": (5, "NULL or NOT NULL is missing at the end"),
    "a IS NOT": (9, "NULL is missing at the end"),
    "a LIKE": (7, "a text such as 'a%' is missing at the end"),
    "a LIKE 'x' ESCAPE": (18, "a text of one character is missing at the end"),
    "a BETWEEN": (10, "a value is missing at the end"),
    "a BETWEEN 1": (12, BETWEEN),
    "a BETWEEN 1 AND": (16, "a value is missing at the end"),
    "color = 'red": (9, "\"'\" is never closed; a quote inside a text is written twice: 'it''s'"),
    "color = 'it's'": (14, "\"'\" is never closed; a quote inside a text is written twice: 'it''s'"),
    'b OR "a = 1': (6, "'\"' is never closed"),
    "`a": (1, "'`' is never closed"),
    "(a = 1": (1, "this parenthesis is never closed"),
    "a = 1 OR ((b = 1)": (10, "this parenthesis is never closed"),
    "a IN (1, 2": (6, "this parenthesis is never closed"),
    "a = 1)": (6, "this parenthesis closes nothing"),
    "a IN (1, 2))": (12, "this parenthesis closes nothing"),
    # Not in this order.
    "color red": (7, OPERATOR.format("red")),
    "a = 'x' 'y'": (9, OPERATOR.format("'y'")),
    "a = 1b": (6, OPERATOR.format("b")),
    "a = 0x1F": (6, OPERATOR.format("x1F")),
    "a = 10L": (7, OPERATOR.format("L")),
    "a = 1_000": (6, OPERATOR.format("_000")),
    "a = 1.2.3": (8, OPERATOR.format(".3")),
    "a = N'x'": (6, OPERATOR.format("'x'")),
    "date '2026-01-01' < a": (6, OPERATOR.format("'2026-01-01'")),
    "a = interval '1' day": (14, OPERATOR.format("'1'")),
    "a b = 1": (3, OPERATOR.format("b")),
    "a = 1 (b)": (7, OPERATOR.format("(")),
    "a SIMILAR TO 'x'": (3, OPERATOR.format("SIMILAR")),
    "a ILIKE 'x'": (3, OPERATOR.format("ILIKE")),
    "a REGEXP 'x'": (3, OPERATOR.format("REGEXP")),
    "a XOR b": (3, OPERATOR.format("XOR")),
    "a COLLATE x = 'y'": (3, OPERATOR.format("COLLATE")),
    "a = 1 AS b": (7, OPERATOR.format("AS")),
    "a ISNULL": (3, OPERATOR.format("ISNULL")),
    "a lıke 'x'": (3, OPERATOR.format("lıke")),
    "a ESCAPE 'x'": (3, OPERATOR.format("ESCAPE")),
    "a LIKE 'x' ESCAPE '!' ESCAPE '!'": (23, JOINT.format("ESCAPE")),
    f"a {'b' * 50}": (3, OPERATOR.format("b" * 37 + "...")),
    "= 1": (1, CONDITION.format("=")),
    "a AND OR b": (7, CONDITION.format("OR")),
    "()": (2, CONDITION.format(")")),
    "* = 1": (1, CONDITION.format("*")),
    "+a = 1": (1, CONDITION.format("+")),
    "a = +1": (5, VALUE.format("+")),
    "a == 1": (4, VALUE.format("=")),
    "a <=> 1": (5, VALUE.format(">")),
    "a < > 1": (5, VALUE.format(">")),
    "a =< 1": (4, VALUE.format("<")),
    "a >> 1": (4, VALUE.format(">")),
    "a = * 1": (5, VALUE.format("*")),
    "a = NOT b": (5, VALUE.format("NOT")),
    "a IN ()": (7, VALUE.format(")")),
    "a IN (1,)": (9, VALUE.format(")")),
    "a IN (,1)": (7, VALUE.format(",")),
    "a BETWEEN 1 AND NOT 2": (17, VALUE.format("NOT")),
    "a IN b": (6, "a list such as (1, 2) is expected here, not 'b'"),
    "a NOT = 1": (7, "IN, LIKE or BETWEEN is expected here, not '='"),
    "a NOT NULL": (7, "IN, LIKE or BETWEEN is expected here, not 'NULL'"),
    "a IS 5": (6, "NULL or NOT NULL is expected here, not '5'"),
    "a IS TRUE": (6, "NULL or NOT NULL is expected here, not 'TRUE'"),
    "a IS DISTINCT FROM b": (6, 'DISTINCT is not supported; a property of this name needs quotes: "DISTINCT"'),
    "a IS NOT 5": (10, "NULL is expected here, not '5'"),
    "a LIKE b": (8, "a text such as 'a%' is expected here, not 'b'"),
    "a LIKE ('b')": (8, "a text such as 'a%' is expected here, not '('"),
    "a LIKE NULL": (8, "a text such as 'a%' is expected here, not 'NULL'"),
    "a LIKE 'b' ESCAPE c": (19, "a text of one character is expected here, not 'c'"),
    "a BETWEEN 1 OR 2": (13, BETWEEN),
    "a BETWEEN 1, 2": (12, BETWEEN),
    "a BETWEEN 1 = 2 AND 3": (13, BETWEEN),
    "a BETWEEN 1 BETWEEN 2 AND 3": (13, BETWEEN),
    "a BETWEEN b IN (1) AND 3": (13, BETWEEN),
    "(a BETWEEN 1) AND 2": (13, BETWEEN),
    "a BETWEEN (1 AND 2)": (20, BETWEEN),
    "a BETWEEN SYMMETRIC 1 AND 2": (21, OPERATOR.format("1")),
    "(1, 2)": (3, "only the list behind IN has commas"),
    "a = 1, b = 2": (6, "only the list behind IN has commas"),
    "a IN ((1, 2))": (9, "only the list behind IN has commas"),
    "a IN (1) - b": (10, JOINT.format("-")),
    "a = 1 OR b NOT IN (1, 2) * 3": (26, JOINT.format("*")),
    "a IN (1) IN (2)": (10, JOINT.format("IN")),
    "a IN (1) NOT IN (2)": (10, JOINT.format("NOT")),
    "a LIKE 'x' + 1": (12, JOINT.format("+")),
    "a LIKE 'x' ESCAPE '!' = b": (23, JOINT.format("=")),
    "a IS NULL * 2": (11, JOINT.format("*")),
    "a IS NULL IS NULL": (11, JOINT.format("IS")),
    "a IS NOT NULL = TRUE": (15, JOINT.format("=")),
    "a < b < c": (7, CHAINED),
    "c = 1 AND a = b = TRUE": (17, CHAINED),
    "a = b LIKE 'x'": (7, CHAINED),
    "a = b IS NULL": (7, CHAINED),
    "a = b NOT IN (1)": (11, CHAINED),
    "a BETWEEN 1 AND 2 BETWEEN 3 AND 4": (19, CHAINED),
    "a IN (b = 1 = 2)": (13, CHAINED),
    # Not in a filter.
    "upper(color) = 'RED'": (1, "functions are not supported"),
    "a = 1 AND count (b)": (11, "functions are not supported"),
    "CAST(a AS INT) = 1": (1, "functions are not supported"),
    "row_number() OVER () = 1": (1, "functions are not supported"),
    '"a"(1)': (1, "functions are not supported"),
    "CASE WHEN a THEN b END": (1, 'CASE is not supported; a property of this name needs quotes: "CASE"'),
    "a IN (select b FROM c)": (7, 'SELECT is not supported; a property of this name needs quotes: "select"'),
    "EXISTS (SELECT 1)": (1, 'EXISTS is not supported; a property of this name needs quotes: "EXISTS"'),
    "a = 1; b = 2": (6, "';' is not allowed; a filter is one condition"),
    "a = 1;": (6, "';' is not allowed; a filter is one condition"),
    "a = 1 -- b": (7, "'--' begins a comment; a filter has none"),
    "a--1 = 2": (2, "'--' begins a comment; a filter has none"),
    "/* b */ a = 1": (1, "'/*' begins a comment; a filter has none"),
    "a = 1 # b": (7, NO_PARAMETER.format("#")),
    "a = ?": (5, NO_PARAMETER.format("?")),
    "a = :b": (5, NO_PARAMETER.format(":")),
    "a = @b": (5, NO_PARAMETER.format("@")),
    "a = $1": (5, NO_PARAMETER.format("$")),
    "a = {{ b }}": (5, NO_PARAMETER.format("{")),
    "a::int = 1": (2, NO_PARAMETER.format(":")),
    "a % 2 = 0": (3, NO_OPERATOR.format("%")),
    "a || 'b' = 'c'": (3, NO_OPERATOR.format("|")),
    "a & 1 = 0": (3, NO_OPERATOR.format("&")),
    "!a": (1, NO_OPERATOR.format("!")),
    "a ^ 2 = 0": (3, NO_OPERATOR.format("^")),
    "~a = 0": (1, NO_OPERATOR.format("~")),
    "a[1] = 0": (2, NO_OPERATOR.format("[")),
    "a = \\1": (5, NO_OPERATOR.format("\\")),
    "a\N{NO-BREAK SPACE}= 1": (2, "'\\xa0' is no part of a filter"),
    "a = 1 \x00": (7, "'\\x00' is no part of a filter"),
    "a = \U0001f34e": (5, "'\N{RED APPLE}' is no part of a filter"),
    "a = \ud800": (5, "'\\ud800' is no part of a filter"),
    "a = ²": (5, "'²' has characters that a name without quotes cannot have"),
    "a = .": (5, "'.' is no part of a filter"),
    # Names and constants.
    '"" = 1': (1, "a name is empty"),
    "a = 1 OR ``=1": (10, "a name is empty"),
    "halfmq.color = 1": (1, NO_SYSTEM_FIELD.format("halfmq.color")),
    "a = 1 AND halfmq.queue_no = 1": (11, NO_SYSTEM_FIELD.format("halfmq.queue_no")),
    "halfmq.origin-topic = 'x'": (1, NO_SYSTEM_FIELD.format("halfmq.origin")),
    "halfmq.TOPIC = 'x'": (1, NO_SYSTEM_FIELD.format("halfmq.TOPIC")),
    "HALFMQ.topic = 'x'": (1, NO_SYSTEM_FIELD.format("HALFMQ.topic")),
    "m.color = 'x'": (1, NO_SYSTEM_FIELD.format("m.color")),
    "m.\"color\" = 'x'": (1, NO_SYSTEM_FIELD.format("m.color")),
    "halfmq.topic.name = 'x'": (1, NO_SYSTEM_FIELD.format("halfmq.topic.name")),
    f"x.{'y' * 50} = 1": (1, NO_SYSTEM_FIELD.format("x." + "y" * 35 + "...")),
    "a = 1e309": (5, "the number 1e309 is too large"),
    f"a = {'9' * 400}": (5, f"the number {'9' * 37}... is too large"),
    # Kinds that do not go together.
    "5": (1, "a condition is expected here, and this is a number"),
    "a + 1": (1, "a condition is expected here, and this is a number"),
    "a = 1 OR 'x'": (10, "a condition is expected here, and this is a text"),
    "NOT halfmq.topic": (5, "a condition is expected here, and this is a text"),
    "(TAGS) AND a": (2, "a condition is expected here, and this is a text"),
    "(a = 1) IS NULL": (2, COMPOSED),
    "a = (b AND c)": (6, COMPOSED),
    "a = ((b) IS NULL)": (7, COMPOSED),
    "-(a = 1) = 2": (3, COMPOSED),
    "1 + (NOT a) = 2": (10, COMPOSED),
    "a IN (b = 1)": (7, COMPOSED),
    "(a = 1) = (b = 1)": (2, COMPOSED),
    "(a = 1) BETWEEN 1 AND 2": (2, COMPOSED),
    "a IN (1, b IN (2))": (10, COMPOSED),
    "TRUE = 1": (1, "TRUE and FALSE cannot be compared with a number"),
    "a + 1 <> FALSE": (10, "TRUE and FALSE cannot be compared with a number"),
    "5 IN (TRUE)": (7, "TRUE and FALSE cannot be compared with a number"),
    "halfmq.size = TRUE": (15, "TRUE and FALSE cannot be compared with a number"),
    "a > TRUE": (5, "TRUE and FALSE cannot be compared with >"),
    "FALSE <= NULL": (1, "TRUE and FALSE cannot be compared with <="),
    "a BETWEEN FALSE AND TRUE": (11, "TRUE and FALSE cannot be compared with >="),
    "a = 1 + 'x'": (9, "a number is expected here, and this is a text"),
    "'1' * 2 = 2": (1, "a number is expected here, and this is a text"),
    "halfmq.topic - 1 = 2": (1, "a number is expected here, and this is a text"),
    "a = -TRUE": (6, "a number is expected here, and this is TRUE or FALSE"),
    "halfmq.size LIKE '1%'": (1, "LIKE needs a text, and this is a number"),
    "a + 1 LIKE '1%'": (1, "LIKE needs a text, and this is a number"),
    "TRUE LIKE '1%'": (1, "LIKE needs a text, and this is TRUE or FALSE"),
    # Patterns.
    "a LIKE 'x' ESCAPE ''": (19, "the escape character is a text of one character"),
    "a LIKE 'x' ESCAPE '!!'": (19, "the escape character is a text of one character"),
    "a LIKE 'x!y' ESCAPE '!'": (8, "in this pattern '!' is not followed by '%', '_' or '!'"),
    "a LIKE 'x!' ESCAPE '!'": (8, "in this pattern '!' is not followed by '%', '_' or '!'"),
    "a = 1 OR a LIKE '%%' ESCAPE '%' OR a LIKE '%' ESCAPE '%'": (
        43,
        "in this pattern '%' is not followed by '%', '_' or '%'",
    ),
    # Too large.
    "(" * 21 + "a" + ")" * 21: (21, "this is nested too deep; 20 levels are allowed"),
    "b = 1 AND " + "NOT " * 21 + "a": (91, "this is nested too deep; 20 levels are allowed"),
    "a = " + "- " * 21 + "1": (45, "this is nested too deep; 20 levels are allowed"),
    "NOT (-(" * 7 + "a" + "))" * 7: (36, "this is nested too deep; 20 levels are allowed"),
    "a IN (" + "(" * 20 + "1" + ")" * 21: (26, "this is nested too deep; 20 levels are allowed"),
    " " * 4097: (4097, "it has 4097 characters, and 4096 are allowed"),
    "a = 1".ljust(5000): (4097, "it has 5000 characters, and 4096 are allowed"),
}


@pytest.mark.parametrize("expression", SQL_REFUSALS, ids=lambda expression: ascii(expression[:60]))
def test_sql_that_is_no_filter(expression: str) -> None:
    at, text = SQL_REFUSALS[expression]
    refused = refusal(FilterKind.SQL, expression)
    example = "color = 'red' AND price > 10"
    assert refused.message == f"The filter is wrong at character {at}: {text}. This one is right: {example}"
    assert (refused.reason, refused.field) == ("FILTER_INVALID", "subscription.filter")
    assert compile_filter(FilterKind.SQL, example)


TAG_REFUSALS: dict[str, tuple[int, str]] = {
    "": (1, "it is empty"),
    " \t": (1, "it is empty"),
    "||": (1, "a tag is missing"),
    " ||  || ": (1, "a tag is missing"),
    "A | B": (3, "tags are separated by '||', and none contains a '|'"),
    " A || B|C": (8, "tags are separated by '||', and none contains a '|'"),
    "A ||| B": (5, "tags are separated by '||', and none contains a '|'"),
    "A || B\x07": (7, "the control character '\\x07' cannot be in a tag"),
    "\x1fA": (1, "the control character '\\x1f' cannot be in a tag"),
    "A\nB": (2, "the control character '\\n' cannot be in a tag"),
    "A\x7f": (2, "the control character '\\x7f' cannot be in a tag"),
    "A || *": (6, "'*' stands alone, for all messages; it cannot be one of several tags"),
    "* || A": (1, "'*' stands alone, for all messages; it cannot be one of several tags"),
    "A ||  " + "x" * 16385: (7, "this tag has 16385 bytes; 16384 are allowed"),
    "é" * 8193: (1, "this tag has 16386 bytes; 16384 are allowed"),
    " || ".join(map(str, range(2049))): (15274, "it has more than 2048 tags, and so many are allowed"),
    "A || " * 6554: (32769, "it has more than 32768 bytes, and so many are allowed"),
    "é ||" * 6554: (26217, "it has more than 32768 bytes, and so many are allowed"),
}


@pytest.mark.parametrize("expression", TAG_REFUSALS, ids=lambda expression: ascii(expression[:60]))
def test_tags_that_are_no_filter(expression: str) -> None:
    at, text = TAG_REFUSALS[expression]
    refused = refusal(FilterKind.TAG, expression)
    assert refused.message == f"The filter is wrong at character {at}: {text}. This one is right: TagA || TagB"
    assert (refused.reason, refused.field) == ("FILTER_INVALID", "subscription.filter")


def test_the_field_is_filter_when_none_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(FilterKind.TAG, "")
    assert caught.value.field == "filter"


def test_a_refusal_lists_the_system_fields_that_exist() -> None:
    for name in SYSTEM_FIELDS:
        assert name in refusal(FilterKind.SQL, "halfmq.nothing = 1").message
        compile_filter(FilterKind.SQL, f"{name} IS NULL")


def test_what_the_parser_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that passes the scanner is known to do that, but the parser has versions to come."""

    def refuse(*_: object) -> None:
        raise ParseError("no")

    monkeypatch.setattr(sql, "Parser", lambda: SimpleNamespace(parse_into=refuse))
    assert "at character 1: it cannot be understood." in refusal(FilterKind.SQL, "a = 1").message


def test_what_a_later_parser_adds_to_the_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = exp.Between(this=exp.column("1"), low=exp.column("2"), high=exp.column("3"), symmetric=True)
    monkeypatch.setattr(sql, "Parser", lambda: SimpleNamespace(parse_into=lambda *_: [tree]))
    assert "at character 5: this is not supported." in refusal(FilterKind.SQL, "NOT a = 1").message


def test_a_parser_that_runs_out_of_stack_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """How deep it may call itself depends on who calls it, and on whether it is compiled."""

    def go_deeper(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(sql, "Parser", lambda: SimpleNamespace(parse_into=go_deeper))
    assert "at character 1: it is nested too deep; use fewer parentheses." in refusal(FilterKind.SQL, "a = 1").message


def test_the_deepest_nesting_leaves_room_for_callers() -> None:
    def compile_below(frames: int, expression: str) -> None:
        if frames:
            compile_below(frames - 1, expression)
        else:
            compile_filter(FilterKind.SQL, expression)

    for expression in ("(" * 20 + "a" + ")" * 20, "a = " + "(1 + " * 20 + "1" + ")" * 20, "NOT " * 20 + "a"):
        compile_below(300, expression)
