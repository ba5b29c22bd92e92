"""What a cell answers about messages that left it by a move.

Its op records stay there for their retention. The queues in them are in another cell by now, so that places have no
topic, and messages are not found. What is missing is told by the cell that has the record, too, and the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfmq.v1 import query_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfmq.v1 import message_pb2

_PLACED = {
    query_pb2.TIMELINE_EVENT_TYPE_SCHEDULED,
    query_pb2.TIMELINE_EVENT_TYPE_RELEASED,
    query_pb2.TIMELINE_EVENT_TYPE_RECALLED,
}
_DELIVERIES = {
    query_pb2.TIMELINE_EVENT_TYPE_DELIVERED,
    query_pb2.TIMELINE_EVENT_TYPE_ACKED,
    query_pb2.TIMELINE_EVENT_TYPE_NACKED,
    query_pb2.TIMELINE_EVENT_TYPE_DEAD_LETTERED,
    query_pb2.TIMELINE_EVENT_TYPE_REDRIVEN,
}


def lacks_places(places: Iterable[message_pb2.LogPosition]) -> bool:
    """Whether a place is not known: its queue is in another cell, or its topic was deleted."""
    return any(not place.topic for place in places)


def fill_places(places: Sequence[message_pb2.LogPosition], others: Sequence[message_pb2.LogPosition]) -> None:
    """Fills in those that are not known, from what another cell answered about the same messages."""
    for place, other in zip(places, others, strict=False):
        if not place.topic and other.topic:
            place.CopyFrom(other)


def is_found(answer: query_pb2.GetMessageResponse) -> bool:
    """Whether a message itself is in an answer, or it is known that there is none."""
    if answer.state != transaction_pb2.TRANSACTION_STATE_COMMITTED:
        return True
    return any(answer.HasField(field) for field in ("message", "waiting", "recalled_at"))


def better(one: query_pb2.GetMessageResponse, other: query_pb2.GetMessageResponse) -> query_pb2.GetMessageResponse:
    """Of two answers about a message the one that has it; else the one by which it does not wait any more."""
    return other if is_found(other) or one.HasField("scheduled_at") else one


def merged(answers: Sequence[query_pb2.GetTimelineResponse]) -> query_pb2.GetTimelineResponse:
    """One timeline of the answers of all cells that know a message: each has the deliveries that were made there."""
    if len(answers) == 1:
        return answers[0]
    whole = next(filter(has_its_place, answers), answers[0])
    events: list[Any] = list(whole.events)
    for answer in answers:
        events += [event for event in answer.events if event.type in _DELIVERIES and event not in events]
    before = [event for event in events if event.type not in _DELIVERIES]
    deliveries = [event for event in events if event.type in _DELIVERIES]
    deliveries.sort(key=lambda event: event.happened_at.ToMicroseconds())
    return query_pb2.GetTimelineResponse(events=[*before, *deliveries])


def has_its_place(answer: query_pb2.GetTimelineResponse) -> bool:
    """Whether a timeline is of the cell that its message is in, as far as it has a place."""
    placed = [event for event in answer.events if event.type in _PLACED]
    if not placed or placed[-1].type == query_pb2.TIMELINE_EVENT_TYPE_RECALLED:
        return True
    return bool(placed[-1].position.topic)
