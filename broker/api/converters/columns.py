"""Messages of the log by columns."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING

from broker.domain.columns import ALL_COLUMNS, Column
from broker.domain.message import DEDUP_KEY, DELIVER_AT, PRIORITY
from broker.errors import InvalidArgument
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.domain.columns import LogColumns

_AT_ONCE = -1
_COLUMNS = {getattr(consumer_pb2, f"LOG_COLUMN_{column.name}"): column for column in Column}
_KEPT = frozenset((PRIORITY, DELIVER_AT, DEDUP_KEY))


def columns_in(wanted: Iterable[int], field: str) -> frozenset[Column]:
    """The columns that a request asks for; all where it names none.

    Raises:
        InvalidArgument: one of them is unknown.
    """
    try:
        return frozenset([_COLUMNS[each] for each in wanted]) or ALL_COLUMNS
    except KeyError as error:
        raise InvalidArgument(f"There is no column {error.args[0]}; leave it out.", field=field) from None


def fill_log_columns(
    target: consumer_pb2.LogColumns, columns: LogColumns, only: frozenset[Column] = ALL_COLUMNS
) -> None:
    """Writes messages into an answer, at least one of them; a column without any values stays empty."""
    offsets = columns.offsets
    target.topic = columns.topic
    target.queue = columns.queue_no
    target.count = len(offsets)
    target.first_offset = offsets[0]
    if offsets[-1] - offsets[0] >= len(offsets):
        target.offsets.extend(offsets)
    if Column.BODY in only:
        target.bodies = columns.bodies
        target.body_ends.extend(accumulate(columns.sizes))
    if Column.TRANSACTION_ID in only:
        target.transaction_ids = columns.transaction_ids
    if Column.POSITION in only and any(columns.positions):
        target.positions.extend(columns.positions)
    if Column.BORN_AT in only:
        target.born_at.extend(columns.born_at)
    if Column.STORED_AT in only:
        target.stored_at.extend(columns.stored_at)
    if Column.TAG in only and columns.tags is not None:
        target.tags.extend(_texts(columns.tags))
    if Column.KEYS in only and columns.keys is not None:
        target.key_counts.extend(map(len, columns.keys))
        target.keys.extend(chain.from_iterable(columns.keys))
    if Column.MESSAGE_GROUP in only and columns.message_groups is not None:
        target.message_groups.extend(_texts(columns.message_groups))
    if columns.properties is not None:
        _fill_properties(target, columns.properties, only)


def _texts(column: Sequence[str | None]) -> Iterable[str]:
    return [text or "" for text in column]


def _fill_properties(
    target: consumer_pb2.LogColumns, properties: Sequence[dict[str, str]], only: frozenset[Column]
) -> None:
    """Writes properties, and the broker's own ones into separate columns."""
    names = set().union(*properties)
    if PRIORITY in names and Column.PRIORITY in only:
        target.priorities.extend([int(each.get(PRIORITY, 0)) for each in properties])
    if DELIVER_AT in names and Column.DELIVER_AT in only:
        target.deliver_at.extend([int(each.get(DELIVER_AT, _AT_ONCE)) for each in properties])
    if DEDUP_KEY in names and Column.DEDUP_KEY in only:
        target.dedup_keys.extend([each.get(DEDUP_KEY, "") for each in properties])
    if names <= _KEPT or Column.PROPERTIES not in only:
        return
    if names & _KEPT:
        properties = [{name: text for name, text in each.items() if name not in _KEPT} for each in properties]
    target.property_counts.extend(map(len, properties))
    target.property_names.extend(chain.from_iterable(properties))
    target.property_values.extend(chain.from_iterable([each.values() for each in properties]))
