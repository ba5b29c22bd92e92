"""Splits an expression into tokens, and refuses invalid sequences.

sqlglot accepts much more SQL than a filter may contain, ignores some mistakes (it joins adjacent texts, and accepts
BETWEEN without AND), and cannot always locate a mistake. So the broker checks the tokens first. After that sqlglot gets
only filters, and only determines their structure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.filters.fault import BLANKS, Fault, shorten
from broker.domain.filters.fields import Kind, NamePart, Value, field_value
from broker.domain.filters.numbers import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_PART = r"""(?:[^\W\d][\w$]*|"[^"]*(?:""[^"]*)*"|`[^`]*(?:``[^`]*)*`)"""
_TOKEN = re.compile(
    rf"""
    (?P<blank> [{BLANKS}]+ )
    | (?P<comment> -- | /\* )
    | (?P<number> (?: [0-9]+ (?: \.[0-9]* )? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
    | (?P<text> '[^']*(?:''[^']*)*' )
    | (?P<name> {_PART} (?: [{BLANKS}]* \. [{BLANKS}]* {_PART} )* )
    | (?P<sign> <> | != | <= | >= | [-+*/=<>(),] )
    """,
    re.VERBOSE,
)
_NAME_PART = re.compile(_PART)

SEARCHES = {"CONTAINS", "STARTSWITH", "ENDSWITH"}
"""RocketMQ's operators besides LIKE: a text without wildcards."""
_WORDS = {"AND", "OR", "NOT", "IS", "IN", "LIKE", "ESCAPE", "BETWEEN"} | SEARCHES
_CONSTANTS: dict[str, tuple[Kind, bool | None]] = {
    "TRUE": (Kind.BOOLEAN, True),
    "FALSE": (Kind.BOOLEAN, False),
    "NULL": (Kind.NULL, None),
}
_RESERVED = {"CASE", "DISTINCT", "EXISTS", "SELECT"}
"""Keywords of constructs that filters do not support. As names they would lead to confusing errors."""

_FOREIGN = {
    "'": "is never closed; a quote inside a text is written twice: 'it''s'",
    '"': "is never closed",
    "`": "is never closed",
    ";": "is not allowed; a filter is one condition",
    **dict.fromkeys(["--", "/*"], "begins a comment; a filter has none"),
    **dict.fromkeys("?:@$#{}", "is not allowed; there are no parameters, write the value itself"),
    **dict.fromkeys("%|&^~!\\[]", "is no operator of a filter"),
}

MAX_NESTING = 20
"""Levels of parentheses, NOT and signs before a value. sqlglot needs up to 20 of Python's 1000 frames for each."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the expression.

    Attributes:
        type: the keyword in capitals or the sign; NAME, NUMBER, TEXT, TRUE, FALSE or NULL for tokens with a value.
        at: where it begins, as an index into the expression.
        text: as it is written.
        value: its value, if it has one.
    """

    type: str
    at: int
    text: str
    value: Value | None = None


def scan(expression: str) -> list[Token]:
    """The tokens of an expression, in a valid order.

    Raises:
        Fault: a token is not allowed, or not at this position.
    """
    tokens = list(_tokens(expression))
    _check_order(tokens, end=len(expression.rstrip(BLANKS)))
    return tokens


def _tokens(expression: str) -> Iterator[Token]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        kind, text = (found.lastgroup, found[0]) if found else (None, expression[at])
        if kind in {None, "comment"}:
            raise Fault(at, f"{text!r} {_FOREIGN.get(text, 'is no part of a filter')}")
        if kind != "blank":
            yield _token(kind, text, at)
        at += len(text)


def _token(kind: str | None, text: str, at: int) -> Token:
    if kind == "number":
        number = number_of(text)
        if number is None:
            raise Fault(at, f"the number {shorten(text)} is too large")
        return Token("NUMBER", at, text, Value(Kind.NUMBER, at, lambda _: number, number))
    if kind == "text":
        content = text[1:-1].replace("''", "'")
        return Token("TEXT", at, text, Value(Kind.TEXT, at, lambda _: content, content))
    if kind == "sign":
        return Token("<>" if text == "!=" else text, at, text)
    # Keywords are ASCII only: the capitals of some foreign letters are Latin.
    word = text.upper() if text.isascii() else ""
    if word in _WORDS:
        return Token(word, at, text)
    if word in _CONSTANTS:
        constant, literal = _CONSTANTS[word]
        return Token(word, at, text, Value(constant, at, lambda _: literal, literal))
    if word in _RESERVED:
        raise Fault(at, f'{word} is not supported; a property of this name needs quotes: "{text}"')
    return Token("NAME", at, text, field_value([_name_part(part[0], at) for part in _NAME_PART.finditer(text)], at))


def _name_part(written: str, at: int) -> NamePart:
    quote = written[0]
    if quote not in '"`':
        if not written.replace("$", "_").isidentifier():
            raise Fault(at, f"{shorten(written)!r} has characters that a name without quotes cannot have")
        return NamePart(written, quoted=False)
    name = written[1:-1].replace(quote * 2, quote)
    if not name:
        raise Fault(at, "a name is empty")
    return NamePart(name, quoted=True)


_SIGNS = {"=", "<>", "<", "<=", ">", ">="}
_COMPARISONS = _SIGNS | {"IS", "IN", "LIKE", "BETWEEN"} | SEARCHES
_VALUES = {"NAME", "NUMBER", "TEXT", "TRUE", "FALSE", "NULL"}
_VALUE_STARTS = _VALUES | {"(", "-"}
_VALUE_ENDS = _VALUES | {")"}
_CONDITION_ENDS = {"is's NULL", "in's )", "like's TEXT", "escape's TEXT", "search's TEXT"}
_JOINTS = {"AND", "OR", ")", "in's )", ","}

_CONDITION = (_VALUE_STARTS | {"NOT"}, "a value or a condition")
_VALUE = (_VALUE_STARTS, "a value")
_OPERATOR = (
    _COMPARISONS | _JOINTS | {"+", "-", "*", "/", "value's NOT", "between's AND"},
    "an operator such as = or AND",
)
_JOINT = (_JOINTS, "AND or OR")

_NEXT: dict[str, tuple[set[str], str]] = {
    **dict.fromkeys(["start", "(", "AND", "OR", "NOT"], _CONDITION),
    **dict.fromkeys([*_SIGNS, "+", "-", "*", "/", ",", "in's (", "BETWEEN", "between's AND"], _VALUE),
    **dict.fromkeys(_VALUE_ENDS, _OPERATOR),
    **dict.fromkeys(_CONDITION_ENDS, _JOINT),
    "value's NOT": ({"IN", "LIKE", "BETWEEN"} | SEARCHES, "IN, LIKE or BETWEEN"),
    "IS": ({"is's NULL", "is's NOT"}, "NULL or NOT NULL"),
    "is's NOT": ({"is's NULL"}, "NULL"),
    "IN": ({"in's ("}, "a list such as (1, 2)"),
    "LIKE": ({"like's TEXT"}, "a text such as 'a%'"),
    **dict.fromkeys(SEARCHES, ({"search's TEXT"}, "a text such as 'a'")),
    "like's TEXT": (_JOINTS | {"ESCAPE"}, "AND or OR"),
    "ESCAPE": ({"escape's TEXT"}, "a text of one character"),
}
"""What may follow a token, and its name in errors. A token with several meanings has an entry for each."""

_ROLES = {
    ("IS", "NOT"): "is's NOT",
    ("IS", "NULL"): "is's NULL",
    ("is's NOT", "NULL"): "is's NULL",
    ("IN", "("): "in's (",
    ("LIKE", "TEXT"): "like's TEXT",
    **{(search, "TEXT"): "search's TEXT" for search in SEARCHES},
    ("ESCAPE", "TEXT"): "escape's TEXT",
}
"""The meaning of a token after another one, where it differs from the usual one."""


@dataclass(slots=True)
class _Level:
    """The level between two parentheses, or outside of all."""

    opened_at: int | None = None
    is_list: bool = False
    depth: int = 0
    has_comparison: bool = False
    waits_for_and: bool = False

    def role(self, kind: str, before: str) -> str:
        """Which of its meanings a token has."""
        if kind == "AND" and self.waits_for_and:
            return "between's AND"
        if kind == "NOT" and before in _VALUE_ENDS | _CONDITION_ENDS:
            return "value's NOT"
        if kind == ")" and self.is_list:
            return "in's )"
        return _ROLES.get((before, kind), kind)

    def follow(self, role: str, at: int) -> None:
        """Refuses a comparison of a comparison, and a BETWEEN without its AND."""
        if role == "between's AND":
            self.waits_for_and = False
        elif self.waits_for_and and role not in _VALUE_STARTS | {"+", "*", "/"}:
            raise Fault(at, "AND is expected here, as in x BETWEEN 1 AND 5")
        elif role in {"AND", "OR", ","}:
            self.has_comparison = False
        elif role in _COMPARISONS:
            if self.has_comparison:
                raise Fault(at, "a comparison cannot be compared; join conditions with AND or OR")
            self.has_comparison = True
            self.waits_for_and = role == "BETWEEN"


def _check_order(tokens: list[Token], end: int) -> None:
    levels = [_Level()]
    before, before_at = "start", 0
    depth = 0
    for token in tokens:
        level = levels[-1]
        role = level.role(token.type, before)
        allowed, expected = _NEXT[before]
        if role == "(" and before == "NAME":
            raise Fault(before_at, "functions are not supported")
        if role not in allowed:
            raise Fault(token.at, f"{expected} is expected here, not {shorten(token.text)!r}")
        level.follow(role, token.at)
        # A prefix of a value nests like a parenthesis. Anything else continues at the depth of its level.
        nests = token.type == "(" or (role in {"NOT", "-"} and before not in _VALUE_ENDS)
        depth = depth + 1 if nests else level.depth
        if depth > MAX_NESTING:
            raise Fault(token.at, f"this is nested too deep; {MAX_NESTING} levels are allowed")
        if token.type == "(":
            levels.append(_Level(token.at, role == "in's (", depth))
        elif token.type == ")":
            levels.pop()
            if not levels:
                raise Fault(token.at, "this parenthesis closes nothing")
        elif role == "," and not level.is_list:
            raise Fault(token.at, "only the list behind IN has commas")
        before, before_at = role, token.at
    if before not in _VALUE_ENDS | _CONDITION_ENDS:
        raise Fault(end, f"{_NEXT[before][1]} is missing at the end")
    levels[-1].follow("end", end)
    if (opened_at := levels[-1].opened_at) is not None:
        raise Fault(opened_at, "this parenthesis is never closed")
