"""Conditions as functions, with SQL's three values: True, False and None for unknown."""

from __future__ import annotations

from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any

from broker.domain.filters.fault import Fault
from broker.domain.filters.fields import Kind, Value
from broker.domain.filters.numbers import number_from, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.filters.subject import Condition, Number, NumberReader, Reader, Subject

    # Values are only compared after their types, so they are comparable here.
    Test = Callable[[Any, Any], bool]

COMPARISONS: dict[str, Test] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_TEXTUAL = {Kind.PROPERTY, Kind.TEXT}
_TRUTH = {"true": True, "false": False}


def unknown(_: Subject) -> None:
    """The condition that is unknown for every message."""


def every(parts: Sequence[Condition]) -> Condition:
    """AND."""

    def check(subject: Subject) -> bool | None:
        result: bool | None = True
        for part in parts:
            found = part(subject)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return check


def any_of(parts: Sequence[Condition]) -> Condition:
    """OR."""

    def check(subject: Subject) -> bool | None:
        result: bool | None = False
        for part in parts:
            found = part(subject)
            if found:
                return True
            if found is None:
                result = None
        return result

    return check


def negate(part: Condition) -> Condition:
    """NOT."""

    def check(subject: Subject) -> bool | None:
        found = part(subject)
        return None if found is None else not found

    return check


def is_null(value: Value) -> Condition:
    """IS NULL, which is never unknown."""
    read = value.read
    return lambda subject: read(subject) is None


def holds(value: Value) -> Condition:
    """A value instead of a condition: TRUE, FALSE, NULL, or a property with one of the texts true and false.

    Raises:
        Fault: the value is none of these.
    """
    if value.kind not in {Kind.PROPERTY, Kind.BOOLEAN, Kind.NULL}:
        raise Fault(value.at, f"a condition is expected here, and this is {value.kind.value}")
    return _truth(value)


def number(value: Value) -> NumberReader:
    """Reads the value to calculate with it.

    Raises:
        Fault: the value is not a number and not a property.
    """
    if value.kind in {Kind.NUMBER, Kind.NULL}:
        return value.read  # type: ignore[return-value]  # its kind says so
    if value.kind is Kind.PROPERTY:
        return number_from(value.read)
    raise Fault(value.at, f"a number is expected here, and this is {value.kind.value}")


def negative(value: Value) -> Value:
    """The number with the other sign.

    Raises:
        Fault: the value is not a number and not a property.
    """
    read = number(value)

    def minus(subject: Subject) -> Number | None:
        found = read(subject)
        return None if found is None else -found

    literal = None if value.literal is None else -value.literal  # type: ignore[operator]  # a number, says its kind
    return Value(Kind.NUMBER, value.at, minus, literal)


def compare(sign: str, left: Value, right: Value) -> Condition:
    """A comparison.

    Text compared with a number is parsed as one, text compared with TRUE or FALSE as one of these. If it cannot be
    parsed, the comparison is unknown. Two properties are compared as numbers if both are numbers, as texts otherwise.

    Raises:
        Fault: values of these kinds cannot be compared, or not with this sign.
    """
    test = COMPARISONS[sign]
    kinds = {left.kind, right.kind}
    if Kind.BOOLEAN in kinds and (Kind.NUMBER in kinds or sign not in {"=", "<>"}):
        boolean, other = (left, right) if left.kind is Kind.BOOLEAN else (right, left)
        with_what = other.kind.value if Kind.NUMBER in kinds else sign
        raise Fault(boolean.at, f"TRUE and FALSE cannot be compared with {with_what}")
    if Kind.NULL in kinds:
        return unknown
    if Kind.BOOLEAN in kinds:
        return _test(test, _truth(left), _truth(right))
    if Kind.NUMBER in kinds:
        literal = right.literal if right.kind is Kind.NUMBER else None
        return _test(test, _as_number(left), _as_number(right), literal)
    if kinds == {Kind.PROPERTY}:
        return _test_loosely(test, left.read, right.read)
    return _test(test, left.read, right.read, right.literal)


def is_in(left: Value, items: Sequence[Value]) -> Condition:
    """IN, which is the same as `left = item OR left = item ...`.

    Raises:
        Fault: `left` cannot be compared with one of them.
    """
    if left.kind in _TEXTUAL and all(item.kind is Kind.TEXT and item.literal is not None for item in items):
        return _is_one_of(left.read, frozenset(item.literal for item in items))
    if left.kind in {Kind.PROPERTY, Kind.NUMBER} and all(
        item.kind is Kind.NUMBER and item.literal is not None for item in items
    ):
        return _is_one_of(_as_number(left), frozenset(item.literal for item in items))
    return any_of([compare("=", left, item) for item in items])


def fits(left: Value, fits_pattern: Callable[[str], bool]) -> Condition:
    """LIKE, CONTAINS, STARTSWITH and ENDSWITH.

    Raises:
        Fault: `left` is not a text.
    """
    if left.kind not in _TEXTUAL | {Kind.NULL}:
        raise Fault(left.at, f"LIKE needs a text, and this is {left.kind.value}")
    read = left.read

    def check(subject: Subject) -> bool | None:
        text = read(subject)
        return None if text is None else fits_pattern(text)  # type: ignore[arg-type]  # its kind says so

    return check


def _truth(value: Value) -> Condition:
    """Reads TRUE and FALSE, and texts that say so in small or capital letters."""
    read: Any = value.read
    if value.kind not in _TEXTUAL:
        return read  # type: ignore[no-any-return]  # its kind says so

    def check(subject: Subject) -> bool | None:
        text = read(subject)
        return None if text is None else _TRUTH.get(text.lower())

    return check


def _as_number(value: Value) -> NumberReader:
    return number_from(value.read) if value.kind in _TEXTUAL else value.read  # type: ignore[return-value]


def _test(test: Test, left: Reader, right: Reader, literal: Any = None) -> Condition:
    """Compares two values; a constant right one saves a call."""
    if literal is not None:

        def check(subject: Subject) -> bool | None:
            value = left(subject)
            return None if value is None else test(value, literal)

        return check

    def check_both(subject: Subject) -> bool | None:
        one, other = left(subject), right(subject)
        return None if one is None or other is None else test(one, other)

    return check_both


def _test_loosely(test: Test, left: Reader, right: Reader) -> Condition:
    def check(subject: Subject) -> bool | None:
        one: Any = left(subject)
        other: Any = right(subject)
        if one is None or other is None:
            return None
        one_number, other_number = number_of(one), number_of(other)
        if one_number is None or other_number is None:
            return test(one, other)
        return test(one_number, other_number)

    return check


def _is_one_of(read: Reader, wanted: frozenset[object]) -> Condition:
    def check(subject: Subject) -> bool | None:
        value = read(subject)
        return None if value is None else value in wanted

    return check
