"""Messages of the log by columns."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING

from broker.domain.message import DEDUP_KEY, DELIVER_AT, PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.domain.columns import LogColumns
    from halfmq.v1 import consumer_pb2

_AT_ONCE = -1
_KEPT = frozenset((PRIORITY, DELIVER_AT, DEDUP_KEY))


def fill_log_columns(target: consumer_pb2.LogColumns, columns: LogColumns) -> None:
    """Writes messages into an answer, at least one of them; a column without any values stays empty."""
    offsets = columns.offsets
    target.topic = columns.topic
    target.queue = columns.queue_no
    target.count = len(offsets)
    target.first_offset = offsets[0]
    if offsets[-1] - offsets[0] >= len(offsets):
        target.offsets.extend(offsets)
    target.bodies = columns.bodies
    target.body_ends.extend(accumulate(columns.sizes))
    target.transaction_ids = columns.transaction_ids
    if any(columns.positions):
        target.positions.extend(columns.positions)
    target.born_at.extend(columns.born_at)
    target.stored_at.extend(columns.stored_at)
    if columns.tags is not None:
        target.tags.extend(_texts(columns.tags))
    if columns.keys is not None:
        target.key_counts.extend(map(len, columns.keys))
        target.keys.extend(chain.from_iterable(columns.keys))
    if columns.message_groups is not None:
        target.message_groups.extend(_texts(columns.message_groups))
    if columns.properties is not None:
        _fill_properties(target, columns.properties)


def _texts(column: Sequence[str | None]) -> Iterable[str]:
    return [text or "" for text in column]


def _fill_properties(target: consumer_pb2.LogColumns, properties: Sequence[dict[str, str]]) -> None:
    """Writes properties, and the broker's own ones into separate columns."""
    names = set().union(*properties)
    if PRIORITY in names:
        target.priorities.extend([int(each.get(PRIORITY, 0)) for each in properties])
    if DELIVER_AT in names:
        target.deliver_at.extend([int(each.get(DELIVER_AT, _AT_ONCE)) for each in properties])
    if DEDUP_KEY in names:
        target.dedup_keys.extend([each.get(DEDUP_KEY, "") for each in properties])
    if names <= _KEPT:
        return
    if names & _KEPT:
        properties = [{name: text for name, text in each.items() if name not in _KEPT} for each in properties]
    target.property_counts.extend(map(len, properties))
    target.property_names.extend(chain.from_iterable(properties))
    target.property_values.extend(chain.from_iterable([each.values() for each in properties]))
