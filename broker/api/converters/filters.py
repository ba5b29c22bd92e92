"""Filters, and start positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.filters import Filter, FilterKind, compile_filter
from broker.domain.group import EARLIEST, LATEST
from broker.domain.limits import MAX_TOPICS_OF_CLIENT, check_count, check_topic_name
from broker.errors import InvalidArgument
from broker.wire.times import fill_timestamp, micros_of_time
from halfmq.v1 import consumer_pb2, message_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as RepeatedCompositeContainer

MAX_FILTERS = 64 * 1024
"""Maximum characters of all filters of a consumer."""
_BOUNDARIES = {message_pb2.BOUNDARY_EARLIEST: EARLIEST, message_pb2.BOUNDARY_LATEST: LATEST}


def filter_in(given: message_pb2.Filter, field: str) -> Filter | None:
    """A filter as a client sent it; None: all messages.

    Raises:
        InvalidArgument: the expression is invalid; has the position.
    """
    kind = given.WhichOneof("expression")
    if kind is None:
        return None
    if kind == "sql":
        return compile_filter(FilterKind.SQL, given.sql, f"{field}.sql")
    found = compile_filter(FilterKind.TAG, given.tags, f"{field}.tags")
    return None if found.expression == "*" else found


def filter_out(found: Filter) -> message_pb2.Filter:
    """The wire form of a filter."""
    if found.kind is FilterKind.SQL:
        return message_pb2.Filter(sql=found.expression)
    return message_pb2.Filter(tags=found.expression)


def topic_filters_in(given: RepeatedCompositeContainer[consumer_pb2.TopicFilter]) -> dict[str, Filter]:
    """Filters by the name of the topic.

    Raises:
        InvalidArgument: an expression is invalid, a topic has two filters, or they are too long together.
    """
    found: dict[str, Filter] = {}
    if len(given) > MAX_TOPICS_OF_CLIENT:
        check_count(len(given), MAX_TOPICS_OF_CLIENT, "filters")
    # Compiling one takes milliseconds, and blocks the event loop.
    size = sum(len(each.filter.sql) + len(each.filter.tags) for each in given)
    if size > MAX_FILTERS:
        raise InvalidArgument(
            f"The filters have {size} characters together; {MAX_FILTERS} are allowed.", field="filters"
        )
    for index, each in enumerate(given):
        check_topic_name(each.topic, f"filters[{index}].topic")
        if each.topic in found:
            raise InvalidArgument(f"The topic {each.topic!r} has two filters.", field=f"filters[{index}].topic")
        wanted = filter_in(each.filter, f"filters[{index}].filter")
        if wanted is not None:
            found[each.topic] = wanted
    return found


def add_topic_filters(
    target: RepeatedCompositeContainer[consumer_pb2.TopicFilter], filters: Iterable[tuple[str, Filter]]
) -> None:
    """Adds filters to an answer."""
    for topic, each in filters:
        target.add(topic=topic, filter=filter_out(each))


def place_in(given: message_pb2.Position, field: str) -> tuple[int | None, int | None]:
    """A start position: EARLIEST, LATEST or a time in microseconds; or else an offset.

    Raises:
        InvalidArgument: it is unset or invalid.
    """
    kind = given.WhichOneof("position")
    if kind == "offset":
        return None, given.offset
    if kind == "time":
        time = micros_of_time(given.time, f"{field}.time")
        if time == 0:
            raise InvalidArgument("A time lies after 1970.", field=f"{field}.time")
        return time, None
    if kind == "boundary" and given.boundary in _BOUNDARIES:
        return _BOUNDARIES[given.boundary], None
    raise InvalidArgument("Say where: boundary (BOUNDARY_EARLIEST or BOUNDARY_LATEST), time, or offset.", field=field)


def start_in(given: message_pb2.Position, field: str) -> int:
    """A start position: EARLIEST, LATEST, or a time in microseconds.

    Raises:
        InvalidArgument: it is none of them.
    """
    to, _ = place_in(given, field)
    if to is None:
        raise InvalidArgument("A group begins at a boundary or a time; seek it to move it to an offset.", field=field)
    return to


def start_out(start_at: int) -> message_pb2.Position:
    """The wire form of a group's start position."""
    if start_at == EARLIEST:
        return message_pb2.Position(boundary=message_pb2.BOUNDARY_EARLIEST)
    if start_at == LATEST:
        return message_pb2.Position(boundary=message_pb2.BOUNDARY_LATEST)
    position = message_pb2.Position()
    fill_timestamp(position.time, start_at)
    return position
