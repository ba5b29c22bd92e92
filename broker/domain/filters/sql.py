"""Filters in SQL92, as RocketMQ has it: a condition over a message's properties and system fields.

An expression is split into tokens (scanner.py), parsed by sqlglot, and the tree is compiled to nested functions, so
that evaluation does not walk a tree.

sqlglot gets the numbers of the tokens instead of their texts. So every leaf of its tree identifies its token, with
position and value, and nothing is interpreted differently from the scanner. This is the only module that imports
sqlglot, and the first filter in SQL imports it: that takes a tenth of a second.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from sqlglot import ParseError, Parser, TokenType, exp
from sqlglot import Token as ParserToken

from broker.domain.filters import logic, numbers
from broker.domain.filters.cost import Cost
from broker.domain.filters.fault import Fault
from broker.domain.filters.fields import Kind, Value
from broker.domain.filters.patterns import compile_pattern
from broker.domain.filters.scanner import SEARCHES, Token, scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.filters.subject import Condition, Subject

_TYPES = {
    **dict.fromkeys(["NAME", "NUMBER", "TEXT", "TRUE", "FALSE", "NULL"], TokenType.IDENTIFIER),
    **{word: TokenType[word] for word in ("AND", "OR", "NOT", "IS", "IN", "LIKE", "BETWEEN")},
    **dict.fromkeys(SEARCHES, TokenType.LIKE),  # The token before the text distinguishes them.
    "=": TokenType.EQ,
    "<>": TokenType.NEQ,
    "<": TokenType.LT,
    "<=": TokenType.LTE,
    ">": TokenType.GT,
    ">=": TokenType.GTE,
    "+": TokenType.PLUS,
    "-": TokenType.DASH,
    "*": TokenType.STAR,
    "/": TokenType.SLASH,
    "(": TokenType.L_PAREN,
    ")": TokenType.R_PAREN,
    ",": TokenType.COMMA,
}
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expr], numbers.Operation] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: numbers.divide,
}
_SEARCHES: dict[str, Callable[[str], Callable[[str], bool]]] = {
    "CONTAINS": lambda wanted: lambda text: wanted in text,
    "STARTSWITH": lambda wanted: lambda text: text.startswith(wanted),
    "ENDSWITH": lambda wanted: lambda text: text.endswith(wanted),
}
_UNDERSTOOD = {"this", "expression", "expressions", "low", "high", "negate"}
"""The attributes used of nodes. A node with others is refused: they may have a meaning in a later sqlglot."""


def compile_sql(expression: str) -> tuple[Callable[[Subject], bool], Cost]:
    """A function that returns whether the condition is true for a message (unknown is not true), and its cost.

    Raises:
        Fault: the expression is not a condition of the kind that filters may have.
    """
    tokens = scan(expression)
    compiler = _Compiler(tokens)
    condition = compiler.condition(_parse(expression, tokens))
    return lambda subject: condition(subject) is True, compiler.cost


def _parse(expression: str, tokens: list[Token]) -> exp.Expr:
    # ESCAPE and its character are omitted; they are found after the pattern.
    given = [
        ParserToken(_TYPES[token.type], str(number), start=token.at, end=token.at + len(token.text) - 1)
        for number, token in enumerate(tokens)
        if "ESCAPE" not in {token.type, tokens[number - 1].type}
    ]
    try:
        (tree,) = Parser().parse_into(exp.Condition, given, expression)
    except ParseError:
        raise Fault(0, "it cannot be understood") from None
    assert tree is not None  # noqa: S101 - for the type checker; there is at least one token
    return tree


class _Compiler:
    """Compiles a tree whose leaves are numbers of tokens to functions."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self.cost = Cost()

    def condition(self, node: exp.Expr) -> Condition:
        """A part that is true, false or unknown.

        Raises:
            Fault: it is not that, or has operands of the wrong kind.
        """
        node = self._bare(node)
        # Where sqlglot puts the NOT of a NOT LIKE depends on its version: around the node, or into it.
        return logic.negate(self._predicate(node)) if node.args.get("negate") else self._predicate(node)

    def _predicate(self, node: exp.Expr) -> Condition:
        match node:
            case exp.And():
                made = logic.every([self.condition(part) for _, part in _chain(node, exp.And)])
            case exp.Or():
                made = logic.any_of([self.condition(part) for _, part in _chain(node, exp.Or)])
            case exp.Not():
                made = logic.negate(self.condition(node.this))
            case exp.Like():
                made = logic.fits(self._value(node.this), self._pattern(int(node.expression.name)))
            case _:
                made = self._comparison(node)
        return made

    def _comparison(self, node: exp.Expr) -> Condition:
        self.cost.comparisons += 1
        match node:
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                made = logic.compare(_COMPARISONS[type(node)], self._value(node.this), self._value(node.expression))
            case exp.Between():
                value, low, high = (self._value(node.args[name]) for name in ("this", "low", "high"))
                self.cost.comparisons += 1
                made = logic.every([logic.compare(">=", value, low), logic.compare("<=", value, high)])
            case exp.In():
                items = [self._value(item) for item in node.expressions]
                # Constants are looked up in a set, all others compared.
                self.cost.comparisons += sum(item.literal is None for item in items) and len(items)
                made = logic.is_in(self._value(node.this), items)
            case exp.Is():
                made = logic.is_null(self._value(node.this))
            case _:
                made = logic.holds(self._value(node))
        return made

    def _value(self, node: exp.Expr) -> Value:
        """A name, a constant, or arithmetic."""
        node = self._bare(node)
        match node:
            case exp.Column():
                value = self._tokens[int(node.name)].value
                assert value is not None  # noqa: S101 - for the type checker; only such tokens become columns
                return value
            case exp.Neg():
                self.cost.comparisons += 1
                return logic.negative(self._value(node.this))
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
                (_, first), *others = _chain(node, *_ARITHMETIC)
                value = self._value(first)
                self.cost.comparisons += len(others)
                steps = [(_ARITHMETIC[kind], logic.number(self._value(part))) for kind, part in others]
                return Value(Kind.NUMBER, value.at, numbers.chain(logic.number(value), steps))
            case _:
                text = "a condition cannot be compared or calculated with; AND, OR and NOT join conditions"
                raise Fault(self._begin(node), text)

    def _pattern(self, number: int) -> Callable[[str], bool]:
        pattern, *behind = self._tokens[number : number + 3]
        if (search := self._tokens[number - 1].type) in SEARCHES:
            self.cost.likes += 1
            return _SEARCHES[search](_content(pattern))
        escape = None
        if behind and behind[0].type == "ESCAPE":
            escape = _content(behind[1])
            if len(escape) != 1:
                raise Fault(behind[1].at, "the escape character is a text of one character")
        fits, walks = compile_pattern(_content(pattern), escape, pattern.at)
        if walks:
            self.cost.walks += 1
        else:
            self.cost.likes += 1
        return fits

    def _bare(self, node: exp.Expr) -> exp.Expr:
        """The contents of the parentheses, if the node is one."""
        while isinstance(node, exp.Paren):
            node = node.this
        if not _UNDERSTOOD.issuperset(name for name, argument in node.args.items() if argument):
            raise Fault(self._begin(node), "this is not supported")
        return node

    def _begin(self, node: exp.Expr) -> int:
        """Where a node begins, without its parentheses and signs."""
        numbers_of_leaves = [int(leaf.name) for leaf in node.find_all(exp.Column)]
        return self._tokens[min(numbers_of_leaves, default=0)].at


def _chain(node: exp.Expr, *operations: type[exp.Expr]) -> list[tuple[type[exp.Expr], exp.Expr]]:
    """The operands of operations that follow each other, from left to right, each with the operation before it.

    sqlglot makes (a + b) + c from `a + b + c`, so a thousand terms are a thousand levels deep on the left side. On the
    right side only parentheses make levels.
    """
    parts = []
    while isinstance(node, operations):
        parts.append((type(node), node.expression))
        node = node.this
    return [(type(node), node), *reversed(parts)]


def _content(token: Token) -> str:
    return str(token.value.literal) if token.value else ""
