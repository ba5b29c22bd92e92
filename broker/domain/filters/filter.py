"""A compiled filter."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from typing import TYPE_CHECKING

from broker.domain.filters.cost import Cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.filters.subject import Subject


class FilterKind(IntEnum):
    """The language of a filter."""

    TAG = 1
    SQL = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter.

    Attributes:
        expression: as it was given, without blanks around it.
        matches: returns whether a message matches. It never raises.
        cost: of evaluating one.
    """

    kind: FilterKind
    expression: str
    matches: Callable[[Subject], bool] = dataclasses.field(repr=False, compare=False)
    cost: Cost = dataclasses.field(default_factory=Cost, repr=False, compare=False)
