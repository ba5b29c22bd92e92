"""Filters of a query that save reading: ranges of offsets and times, topics, queues and tags.

Spark evaluates every filter itself afterwards; here they only leave out what cannot pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from client_core.filters import TagFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql.datasource import Filter

    from consumer_sdk.spark.source.offsets import Offsets, Queue

    _Compared: TypeAlias = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual

__all__ = ["Pruning", "PushFilters"]

OUT_OF_ORDER = timedelta(hours=1)
"""Messages of a queue become visible in the order of their offsets, up to what a database's clock was set back."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOWER = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)
_UPPER = (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual)
_COMPARED = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass
class Pruning:
    """What the filters of a query leave: bounds are inclusive, None where there is no bound.

    Attributes:
        first, last: Offsets.
        since, until: Times at which messages became visible.
        queues: Numbers of queues to leave out.
        topics: The only topics.
        tags: The only tags.
    """

    first: int | None = None
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    topics: set[str] | None = None
    tags: set[str] | None = None
    _of_queue: list[Filter] = field(default_factory=list)

    def add(self, filters: Iterable[Filter]) -> None:
        """Takes the filters that save reading; ignores the others."""
        for each in filters:
            match getattr(each, "attribute", ()):
                case ("offset",):
                    self._add_offset(each)
                case ("timestamp",):
                    self._add_time(each)
                case ("topic",):
                    self.topics = _among(self.topics, each)
                case ("tag",):
                    self.tags = _among(self.tags, each)
                case ("queue",):
                    self._of_queue.append(each)

    def _add_offset(self, each: Filter) -> None:
        if isinstance(each, In):
            numbers = [value for value in each.value if value is not None]
            lower, upper = (min(numbers), max(numbers)) if numbers else (0, -1)
        elif isinstance(each, _COMPARED) and isinstance(each.value, int):
            lower = each.value + isinstance(each, GreaterThan) if isinstance(each, _LOWER) else None
            upper = each.value - isinstance(each, LessThan) if isinstance(each, _UPPER) else None
        else:
            return
        self.first = _tighter(self.first, lower, max)
        self.last = _tighter(self.last, upper, min)

    def _add_time(self, each: Filter) -> None:
        if not isinstance(each, _COMPARED) or not isinstance(each.value, datetime) or each.value.tzinfo is None:
            return
        try:
            lower, upper = each.value - OUT_OF_ORDER, each.value + OUT_OF_ORDER
        except OverflowError:
            return
        if isinstance(each, _LOWER) and lower > _EPOCH:
            self.since = _tighter(self.since, lower, max)
        if isinstance(each, _UPPER) and upper > _EPOCH:
            self.until = _tighter(self.until, upper, min)

    def keeps(self, queue: Queue) -> bool:
        """Whether messages of a queue may pass."""
        topic, number = queue
        return (self.topics is None or topic in self.topics) and all(_passes(each, number) for each in self._of_queue)

    def applied(self, start: Offsets, end: Offsets, place_at: Callable[[datetime], Offsets]) -> tuple[Offsets, Offsets]:
        """The bounds of what may pass.

        Args:
            start: The first offset of each queue.
            end: The offset after the last one.
            place_at: Gives the first offsets at a time.
        """
        since = {} if self.since is None else place_at(self.since)
        until = {} if self.until is None else place_at(self.until)
        first = 0 if self.first is None else self.first
        start = {queue: max(offset, first, since.get(queue, 0)) for queue, offset in start.items() if self.keeps(queue)}
        end = {queue: min(offset, until.get(queue, offset)) for queue, offset in end.items() if self.keeps(queue)}
        if self.last is not None:
            end = {queue: min(offset, self.last + 1) for queue, offset in end.items()}
        return start, end

    @property
    def wanted(self) -> TagFilter | None:
        """The tags as a filter; None for any, or where a filter cannot name them."""
        tags = sorted(self.tags or ())
        if not tags or any(not tag or tag != tag.strip() or "|" in tag or tag == "*" for tag in tags):
            return None
        return TagFilter(" || ".join(tags))


def _among(known: set[str] | None, each: Filter) -> set[str] | None:
    if isinstance(each, In):
        texts = {value for value in each.value if isinstance(value, str)}
    elif isinstance(each, EqualTo | EqualNullSafe) and isinstance(each.value, str):
        texts = {each.value}
    else:
        return known
    return texts if known is None else known & texts


def _tighter(known: Any, value: Any, choose: Callable[[Any, Any], Any]) -> Any:
    if value is None:
        return known
    return value if known is None else choose(known, value)


def _passes(each: Filter, number: int) -> bool:
    if isinstance(each, In):
        return number in each.value
    if not isinstance(each, _COMPARED) or not isinstance(each.value, int):
        return True
    value = each.value
    return {
        EqualTo: number == value,
        EqualNullSafe: number == value,
        GreaterThan: number > value,
        GreaterThanOrEqual: number >= value,
        LessThan: number < value,
        LessThanOrEqual: number <= value,
    }[type(each)]


class PushFilters:
    """A reader's `pushFilters`, which works whether Spark's filter pushdown is on or off.

    While it is off, Spark refuses readers that override the method, which is what `__func__` tells; it does not call it
    then. (`spark.sql.python.filterPushdown.enabled` is off by default.)
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, pruning: Pruning) -> None:
        """Takes what is to learn the filters."""
        self._pruning = pruning

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Learns the filters; returns all of them, for Spark to evaluate."""
        self._pruning.add(filters)
        return filters
