"""Message filters.

A filter is compiled once, when a consumer subscribes, and evaluated for every message. `Filter.matches` consists of
nested functions and never fails: what cannot be compared is unknown, and unknown is no match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.filters.cost import LIKE, LIKE_WITH_ANY, MAX_COST, Cost
from broker.domain.filters.fault import BLANKS, Fault
from broker.domain.filters.filter import Filter, FilterKind
from broker.domain.filters.subject import Subject
from broker.domain.filters.tags import compile_tags
from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_FILTER", "MAX_TAGS", "Filter", "FilterKind", "Subject", "compile_filter"]

MAX_FILTER = 4096
"""Maximum characters of an SQL expression."""
MAX_TAGS = 32 * 1024
"""Maximum bytes of a list of tags."""


_EXAMPLES = {FilterKind.TAG: "TagA || TagB", FilterKind.SQL: "color = 'red' AND price > 10"}


def compile_filter(
    kind: FilterKind, expression: str, field: str = "filter", *, max_cost: int | None = MAX_COST
) -> Filter:
    """Compiles a filter.

    Args:
        kind: the language.
        expression: the text.
        field: the field of the request, for errors.
        max_cost: steps that it may take for a message; None: any number, for filters that were accepted earlier.

    Raises:
        InvalidArgument: the expression is not a filter, or costs too much. The text names the error and its position
            (from 1), and shows a valid filter.
    """
    try:
        matches, cost = _compile(kind, expression)
    except Fault as fault:
        raise InvalidArgument(
            f"The filter is wrong at character {fault.at + 1}: {fault.text}. This one is right: {_EXAMPLES[kind]}",
            field=field,
            reason="FILTER_INVALID",
            position=fault.at + 1,
        ) from None
    if max_cost is not None and cost.at_most > max_cost:
        raise InvalidArgument(
            f"The filter may take {cost.at_most} steps for a message; {max_cost} are allowed. A LIKE with '_' counts"
            f" {LIKE_WITH_ANY} steps (there are {cost.walks}), another LIKE {LIKE} (there are {cost.likes}): use fewer"
            " of them, or a property that says what they look for.",
            field=field,
            reason="FILTER_TOO_COSTLY",
        )
    return Filter(kind, expression.strip(BLANKS), matches, cost)


def _compile(kind: FilterKind, expression: str) -> tuple[Callable[[Subject], bool], Cost]:
    if kind == FilterKind.TAG and len(expression.encode(errors="surrogatepass")) > MAX_TAGS:
        raise Fault(min(len(expression), MAX_TAGS), f"it has more than {MAX_TAGS} bytes, and so many are allowed")
    if kind == FilterKind.SQL and len(expression) > MAX_FILTER:
        raise Fault(MAX_FILTER, f"it has {len(expression)} characters, and {MAX_FILTER} are allowed")
    if not expression.strip(BLANKS):
        raise Fault(0, "it is empty")
    if kind == FilterKind.TAG:
        return compile_tags(expression), Cost(comparisons=1)
    from broker.domain.filters.sql import compile_sql  # noqa: PLC0415 - heavy, and many brokers never need it

    try:
        return compile_sql(expression)
    except RecursionError:
        raise Fault(0, "it is nested too deep; use fewer parentheses") from None
