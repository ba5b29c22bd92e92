"""Positions, ids and the state: what is read, written and compared, without a server."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmq_connect.cdc.errors import CannotFollow
from halfmq_connect.cdc.ids import part_id
from halfmq_connect.cdc.positions import Gtid, MariaDbPosition, MySqlPosition
from halfmq_connect.cdc.state import State, TableCopy, View

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def gtid(origin: str, number: int) -> Gtid:
    return Gtid(origin, number, f"{origin}:{number}")


@given(st.lists(st.integers(1, 40)))
def test_a_set_of_mysql_is_a_set(numbers: list[int]) -> None:
    position = MySqlPosition()
    for number in numbers:
        position = position.with_gtid(gtid(ONE, number))
    assert {number for number in range(1, 50) if gtid(ONE, number) in position} == set(numbers)
    assert gtid(TWO, 1) not in position
    assert MySqlPosition.parse(str(position)) == position
    assert position.covers(MySqlPosition.parse(str(position)))
    assert not position.covers(position.with_gtid(gtid(TWO, 1)))


def test_sets_of_mysql_as_they_are_written() -> None:
    text = f"{ONE}:1-5:8,\n{TWO}:3"
    position = MySqlPosition.parse(text)
    assert str(position) == text.replace("\n", "")
    assert position.encode().hex() == (
        "0200000000000000" + "11" * 16 + "0200000000000000" + "0100000000000000" + "0600000000000000"
        "0800000000000000" + "0900000000000000" + "22" * 16 + "0100000000000000" + "0300000000000000"
        "0400000000000000"
    )
    with pytest.raises(CannotFollow, match="tags"):
        MySqlPosition.parse(f"{ONE}:tag:1-5")


def test_positions_of_mariadb() -> None:
    position = MariaDbPosition.parse("0-1-8,5-2-3")
    later = position.with_gtid(Gtid("0", 9, "0-7-9"))
    assert str(later) == "0-7-9,5-2-3"
    assert Gtid("0", 9, "0-1-9") in later
    assert Gtid("0", 9, "0-1-9") not in position
    assert Gtid("1", 1, "1-1-1") not in later
    assert later.covers(position)
    assert not position.covers(later)
    assert MariaDbPosition.parse("") == MariaDbPosition()


def test_ids_ascend_and_differ() -> None:
    ids = [part_id("shop", ONE, number, part) for number in (1, 2, 1 << 20, 1 << 33) for part in (0, 1, 999)]
    assert ids == sorted(ids)
    assert {uuid.UUID(each).version for each in ids} == {8}
    assert {uuid.UUID(each).variant for each in ids} == {uuid.RFC_4122}
    others = [part_id("other", ONE, 1, 0), part_id("shop", TWO, 1, 0)]
    assert len({*ids, *others}) == len(ids) + 2
    assert part_id("shop", ONE, 1, 0) == ids[0]


def test_the_state_is_read_as_it_was_written() -> None:
    views = [View(MySqlPosition.parse(f"{ONE}:1-5"), [7, "é"]), View(MySqlPosition.parse(f"{ONE}:1-9"))]
    tables = {"shop.orders": TableCopy(["id", "name"], views, done=True, chunks=4), "shop.items": None}
    state = State(MySqlPosition.parse(f"{ONE}:1-8"), tables)
    decoded = State.decode(state.encode("mysql"), "mysql", MySqlPosition.parse)
    # Of a finished copy, what still counts: what its views have and the position does not.
    ahead = [View(MySqlPosition(), [7, "é"]), View(MySqlPosition.parse(f"{ONE}:9"))]
    assert decoded == State(state.position, {"shop.orders": TableCopy([], ahead, done=True), "shop.items": None})
    with pytest.raises(CannotFollow, match="mysql"):
        State.decode(state.encode("mysql"), "mariadb", MySqlPosition.parse)
    state.position = MySqlPosition.parse(f"{ONE}:1-9")
    state.prune()
    assert state.tables == {"shop.orders": None, "shop.items": None}


def test_a_change_belongs_to_the_view_that_has_its_key() -> None:
    early, late = MySqlPosition.parse(f"{ONE}:1-5"), MySqlPosition.parse(f"{ONE}:1-9")
    copy = TableCopy(["id"], [View(early, [10]), View(late)], done=True)
    has = {
        (number, key): copy.has(gtid(ONE, number), [key], lambda one, other: one > other)
        for number in (5, 7, 10)
        for key in (10, 11)
    }
    assert has == {(5, 10): True, (5, 11): True, (7, 10): False, (7, 11): True, (10, 10): False, (10, 11): False}
