"""From places to positions."""

from __future__ import annotations

from broker.domain.place import Recalled, Scheduled
from broker.services.positions import UNKNOWN_OFFSET, Positions, Released
from unit.broker.services.fakes import FakeNames


async def test_a_place_in_the_log() -> None:
    names = FakeNames("orders", queue_count=2)
    released = Released()
    position = await Positions(names).of((11, 5), "id", released)
    assert (position.topic, position.queue_no, position.offset, position.message_id) == ("orders", 1, 5, "id")
    assert released.end_offsets == {(1, 11): 6}


async def test_heads_grow_with_the_largest_offset() -> None:
    released = Released()
    for offset in (4, 6, 5):
        released.add(1, 10, offset)
    assert released.end_offsets == {(1, 10): 7}


async def test_a_scheduled_message_tells_its_time() -> None:
    released = Released()
    position = await Positions(FakeNames("orders")).of(Scheduled(99, 1), "id", released)
    assert (position.topic, position.scheduled_at, released.next_due, released.end_offsets) == ("orders", 99, 99, {})


async def test_the_earliest_of_the_times_counts() -> None:
    released = Released()
    for due in (30, 10, 20):
        released.schedule(due)
    assert released.next_due == 10


async def test_a_recalled_message_tells_when() -> None:
    released = Released()
    position = await Positions(FakeNames("orders")).of(Recalled(50, 1, 99), "id", released)
    assert (position.topic, position.recalled_at, released.next_due) == ("orders", 50, None)


async def test_a_place_in_a_topic_that_was_deleted_is_not_known() -> None:
    released = Released()
    position = await Positions(FakeNames()).of((11, 5), "id", released)
    assert (position.topic, position.offset, released.end_offsets) == ("", UNKNOWN_OFFSET, {})


async def test_messages_of_a_transaction_have_identities_of_their_own() -> None:
    first, second = await Positions(FakeNames("orders")).of_transaction(bytes(16), [(10, 0), (10, 1)])
    assert second.message_id == f"{first.message_id}.1"
