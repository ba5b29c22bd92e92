"""`halfmq doctor` finds a move that does not go on: at home one that was begun long ago, sooner what stands still."""

from __future__ import annotations

from contextlib import closing

from broker.domain.cell import HOME_NUMBER
from broker.domain.topic import TopicSettings
from broker.ports.diagnosis import SECOND, Finding, Severity
from conformance.diagnosing import findings, one, today
from conformance.moving import B, Installation, topic
from conformance.world import HOUR

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def found_in(cells: Installation, cell: int) -> list[Finding]:
    with closing(cells.worlds[cell].database()) as database:
        return findings(database, "moves")


def age(cells: Installation, cell: int, table: str, column: str, seconds: int) -> None:
    """Has the only row of a table be so old."""
    then = today() - seconds * SECOND
    cells.databases().write(cell, lambda session: session.run(f"UPDATE {table} SET {column} = ?", (then,)))


async def test_a_move_that_was_begun_and_does_not_go_on(cells: Installation) -> None:
    await cells.store(HOME_NUMBER).create_topic("orders", TopicSettings(2, HOUR))
    assert found_in(cells, HOME_NUMBER) == []
    mover, move = cells.begin(B, topic())
    age(cells, HOME_NUMBER, "cell_move", "started_at", 3500)
    assert found_in(cells, HOME_NUMBER) == []
    age(cells, HOME_NUMBER, "cell_move", "started_at", 3 * 3600)
    one(
        found_in(cells, HOME_NUMBER),
        WARNING,
        f"the move {move.number} of topic 'orders' was begun 3.0 h ago, and has not ended",
        "go on with `halfmq cells move --resume`",
    )
    assert found_in(cells, B) == []
    assert mover.carry_on(move).moved
    assert found_in(cells, HOME_NUMBER) == found_in(cells, B) == []


async def test_what_stands_still_is_found_in_the_cell_that_it_leaves(cells: Installation) -> None:
    names = []
    for number in range(11):
        await cells.store(HOME_NUMBER).create_topic(f"orders-{number:02}", TopicSettings(1, HOUR))
        names.append(topic(f"orders-{number:02}"))
    mover, move = cells.begin(B, *names)
    cells.seal(move)
    age(cells, HOME_NUMBER, "move_state", "since", 20)
    assert found_in(cells, HOME_NUMBER) == []
    age(cells, HOME_NUMBER, "move_state", "since", 60)
    one(
        found_in(cells, HOME_NUMBER),
        WARNING,
        f"the move {move.number} to another cell sealed topic 'orders-00',",
        "topic 'orders-09' and 1 more 6",
        "nothing of it goes on",
        "--give-up",
    )
    age(cells, HOME_NUMBER, "move_state", "since", 600)
    one(found_in(cells, HOME_NUMBER), CRITICAL, "sealed", "10.0 min ago")
    assert found_in(cells, B) == []
    mover.give_up(move)
    assert found_in(cells, HOME_NUMBER) == found_in(cells, B) == []


async def test_a_cell_that_is_not_home_tells_what_leaves_it(cells: Installation) -> None:
    await cells.store(HOME_NUMBER).create_topic("orders", TopicSettings(1, HOUR))
    mover, move = cells.begin(B, topic())
    assert mover.carry_on(move).moved
    mover, move = cells.begin(HOME_NUMBER, topic())
    cells.seal(move)
    age(cells, B, "move_state", "since", 600)
    one(found_in(cells, B), CRITICAL, "sealed topic 'orders' 10.0 min ago")
    assert found_in(cells, HOME_NUMBER) == []
    assert mover.carry_on(move).moved
    assert found_in(cells, B) == []
