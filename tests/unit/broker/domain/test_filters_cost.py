"""What a filter costs: known before it judges anything, and for each message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.filters.cost import COMPARISON, LIKE, LIKE_WITH_ANY, MAX_COST
from broker.domain.filters.pacing import JUDGED_AT_ONCE
from broker.errors import InvalidArgument


def steps(expression: str, kind: FilterKind = FilterKind.SQL) -> int:
    return compile_filter(kind, expression, max_cost=None).cost.at_most


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a = 1", COMPARISON),
        ("a = 1 AND NOT b > 2", 2 * COMPARISON),
        ("a BETWEEN 1 AND 3", 2 * COMPARISON),
        ("a IN ('x', 'y', 'z')", COMPARISON),
        ("a IN ('x', b, 'z')", 4 * COMPARISON),
        ("a + b + 1 = -c", 4 * COMPARISON),
        ("a IS NULL OR b", 2 * COMPARISON),
        ("a LIKE 'x%y%z'", LIKE),
        ("a LIKE 'x!_%' ESCAPE '!'", LIKE),
        ("a LIKE '%x_' AND a NOT LIKE '_'", 2 * LIKE_WITH_ANY),
    ],
)
def test_the_steps_of_an_expression(expression: str, expected: int) -> None:
    assert steps(expression) == expected


def test_tags_cost_little() -> None:
    assert steps("a || b || c", FilterKind.TAG) == COMPARISON


def test_what_is_too_dear_is_refused_with_its_cost_and_the_limit() -> None:
    expression = "a LIKE '%_b'" + " OR a LIKE '_'" * 271
    with pytest.raises(InvalidArgument) as refused:
        compile_filter(FilterKind.SQL, expression, "filters[0].filter.sql")
    assert (refused.value.reason, refused.value.field) == ("FILTER_TOO_COSTLY", "filters[0].filter.sql")
    assert f"{272 * LIKE_WITH_ANY} steps" in refused.value.message
    assert f"{MAX_COST} are allowed" in refused.value.message


def test_what_was_taken_in_before_still_judges() -> None:
    expression = "a LIKE '%_b'" + " OR a LIKE '_'" * 271
    known = compile_filter(FilterKind.SQL, expression, max_cost=None)
    assert known.matches(SimpleNamespace(properties={"a": "xxb"}, keys=()))  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["a=1 OR ", "a+", "a LIKE '%b' OR ", "a<b OR "])
def test_no_filter_without_any_character_is_too_dear(part: str) -> None:
    """As long as an expression may be: the limit is for LIKEs with _ alone."""
    ending = "1 = 1" if part == "a+" else "a = 1"
    compile_filter(FilterKind.SQL, part * ((4096 - len(ending)) // len(part)) + ending)


def test_a_message_costs_as_much_as_its_texts_are_long() -> None:
    wanted = compile_filter(FilterKind.SQL, "a LIKE '%_b'" + " OR a LIKE '_'" * 19)
    assert wanted.cost.at_most == MAX_COST

    def of(size: int) -> int:
        return wanted.cost.of(SimpleNamespace(properties={"a": "x" * size}, keys=()))  # type: ignore[arg-type]

    assert of(100) < 1000 < of(4000) < of(16 * 1024) <= JUDGED_AT_ONCE
