"""Restores of a cell's database, and topics that move between cells: no offset is given twice, and none is lost."""

from __future__ import annotations

import pytest

from broker.domain.cell import HOME_NUMBER
from broker.domain.place import InLog
from broker.domain.topic import TopicChange
from broker.errors import ConfigurationError
from conformance.moving import B, Installation, group, made_in, the_topic, topic
from conformance.restoring import told
from conformance.world import bodies, ok, pull, sending


async def test_a_restore_is_not_told_of_while_something_is_taken_out(cells: Installation) -> None:
    """What was taken out would lack the jump of its numbers, and have the gap, wherever it is put in again."""
    store, orders, _ = await made_in(cells, B)
    ok(await store.send([sending(orders, "before")]))
    mover, move = cells.begin(HOME_NUMBER, topic(), group())
    cells.seal(move)
    world = cells.worlds[B]
    with pytest.raises(ConfigurationError, match=rf"The move {move.number} .*--give-up.*--resume"):
        told(world)
    assert cells.count(B, "restoration") == 0
    mover.carry_on(move)
    first = told(world).first_number
    assert cells.count(B, "restoration") == 1
    # It is in the other cell by then, where it was told of nothing: its offsets go on, and all is delivered.
    home = cells.store(HOME_NUMBER)
    moved = await the_topic(cells, HOME_NUMBER)
    (place,) = await home.send([sending(moved, "after")])
    assert isinstance(place, InLog)
    assert place.offset < first
    reader = await home.find_group("billing")
    assert reader is not None
    assert bodies(await pull(home, reader, moved)) == ["before", "after"]


async def test_a_queue_that_is_added_in_another_cell_begins_above_all_that_was_given(cells: Installation) -> None:
    """In the time undone the topic may have had that queue, and nothing in the other cell tells of the restore."""
    store, orders, _ = await made_in(cells, B)
    ok(await store.send([sending(orders, "before")]))
    first = told(cells.worlds[B]).first_number
    cells.move(HOME_NUMBER, topic(), group())
    home = cells.store(HOME_NUMBER)
    bigger = await home.update_topic(await the_topic(cells, HOME_NUMBER), TopicChange(queue_count=2))
    assert await home.send([sending(bigger, "new", queue_no=1)]) == [InLog(bigger.queue_ids[1], first)]
