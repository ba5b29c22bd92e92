"""What two cells answer about a message that has left one of them."""

from __future__ import annotations

from broker.cells import left_behind
from halfmq.v1 import message_pb2, query_pb2, transaction_pb2

COMMITTED = transaction_pb2.TRANSACTION_STATE_COMMITTED
SCHEDULED = query_pb2.TIMELINE_EVENT_TYPE_SCHEDULED
RECALLED = query_pb2.TIMELINE_EVENT_TYPE_RECALLED
RELEASED = query_pb2.TIMELINE_EVENT_TYPE_RELEASED
DELIVERED = query_pb2.TIMELINE_EVENT_TYPE_DELIVERED


def event(kind: query_pb2.TimelineEventType.ValueType, topic: str = "", at: int = 0) -> query_pb2.TimelineEvent:
    made = query_pb2.TimelineEvent(type=kind, position=message_pb2.LogPosition(topic=topic))
    made.happened_at.FromSeconds(at)
    return made


def timeline(*events: query_pb2.TimelineEvent) -> query_pb2.GetTimelineResponse:
    return query_pb2.GetTimelineResponse(events=events)


def kinds(answer: query_pb2.GetTimelineResponse) -> list[int]:
    return [each.type for each in answer.events]


def test_a_cell_that_the_message_left_while_it_waited_does_not_say_that_it_waits() -> None:
    left = timeline(event(SCHEDULED))
    there = timeline(event(SCHEDULED), event(RELEASED, "orders"))
    assert not left_behind.has_its_place(left)
    for answers in ([left, there], [there, left]):
        assert kinds(left_behind.merged(answers)) == [SCHEDULED, RELEASED]


def test_what_waits_and_what_was_recalled_has_its_place() -> None:
    assert left_behind.has_its_place(timeline(event(SCHEDULED, "orders")))
    assert left_behind.has_its_place(timeline(event(SCHEDULED), event(RECALLED)))
    assert left_behind.has_its_place(timeline())
    assert not left_behind.has_its_place(timeline(event(SCHEDULED), event(RELEASED)))


def test_deliveries_of_all_cells_are_in_their_order() -> None:
    left = timeline(event(RELEASED), event(DELIVERED, at=1), event(DELIVERED, at=3))
    there = timeline(event(RELEASED, "orders"), event(DELIVERED, at=2))
    found = left_behind.merged([left, there])
    assert kinds(found) == [RELEASED, DELIVERED, DELIVERED, DELIVERED]
    assert [each.happened_at.seconds for each in found.events[1:]] == [1, 2, 3]
    assert found.events[0].position.topic == "orders"


def test_a_message_that_retention_deleted_does_not_wait() -> None:
    left = query_pb2.GetMessageResponse(state=COMMITTED)
    left.scheduled_at.FromSeconds(9)
    gone = query_pb2.GetMessageResponse(state=COMMITTED)
    stored = query_pb2.GetMessageResponse(state=COMMITTED, message=message_pb2.LogMessage(topic="orders"))
    assert not left_behind.is_found(left)
    assert not left_behind.is_found(gone)
    assert left_behind.better(left, gone) == gone
    assert left_behind.better(left, stored) == left_behind.better(gone, stored) == stored
    assert left_behind.better(gone, left) == gone


def test_places_are_filled_in_from_another_cell() -> None:
    def place(topic: str, offset: int) -> message_pb2.LogPosition:
        return message_pb2.LogPosition(topic=topic, offset=offset)

    ours, theirs = [place("stays", 1), place("", -1)], [place("", -1), place("moved", 2)]
    assert left_behind.lacks_places(ours)
    left_behind.fill_places(ours, theirs)
    assert ours == [place("stays", 1), place("moved", 2)]
