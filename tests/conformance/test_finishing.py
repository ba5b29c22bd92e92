"""Statements left to the COMMIT: they are one round trip with it, and undone where they do other than expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.ports.transactions import PrepareWork
from broker.storage.engine.dialects.quick_connection import QuickConnection
from broker.storage.engine.session import StartOver
from broker.storage.engine.statements import Statement
from broker.storage.log.queue_ends import TRUSTED_AFTER
from conformance.world import World, acks, commit, decided, half, new_id, ok, prepared, pull, sending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
ADD = "INSERT INTO halfmq_note (note) VALUES (?)"


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    found = world.session()
    found.run("CREATE TABLE halfmq_note (note INT PRIMARY KEY)")
    yield found
    found.rollback()
    found.run("DROP TABLE halfmq_note")
    found.commit()


def notes(session: Session) -> list[Any]:
    found = [note for (note,) in session.fetch("SELECT note FROM halfmq_note ORDER BY note")]
    session.rollback()
    return found


def test_they_run_last_and_are_committed(session: Session) -> None:
    told: list[Any] = []
    session.begin()
    session.finish(
        [Statement("SELECT note FROM halfmq_note ORDER BY note"), Statement(ADD, (3,), expected=1)],
        then=told.extend,
    )
    session.finish([Statement(ADD, (4,))])
    session.run(ADD, (1,))
    session.run(ADD, (2,))
    assert told == []
    session.commit()
    assert notes(session) == [1, 2, 3, 4]
    assert [list(answer.rows) for answer in told] == [[(1,), (2,)], []]
    assert told[1].changed == 1


@pytest.mark.parametrize(
    ("sql", "values", "expected"),
    [
        ("UPDATE halfmq_note SET note = 7 WHERE note = ?", (5,), 1),
        ("DELETE FROM halfmq_note WHERE note = ?", (1,), 0),
        ("SELECT note FROM halfmq_note WHERE note = ?", (1,), 0),
        ("SELECT note FROM halfmq_note WHERE note = ?", (5,), 1),
    ],
)
def test_all_is_undone_where_one_does_other_than_expected(
    session: Session, sql: str, values: tuple[int], expected: int
) -> None:
    session.begin()
    session.run(ADD, (1,))
    session.commit()
    session.begin()
    session.run(ADD, (2,))

    def again(_: Session) -> None: ...

    session.finish(
        [Statement(ADD, (3,)), Statement(sql, values, expected=expected), Statement(ADD, (4,))], otherwise=again
    )
    with pytest.raises(StartOver) as over:
        session.commit()
    assert over.value.again is again
    session.rollback()
    assert notes(session) == [1]


def test_they_are_forgotten_with_the_transaction(session: Session) -> None:
    session.begin()
    session.finish([Statement(ADD, (1,))])
    session.rollback()
    session.begin()
    session.run(ADD, (2,))
    session.commit()
    assert notes(session) == [2]


@SERVERS
async def test_round_trips(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lone transaction, from its half message to the ack, and of a message that is sent."""
    # Until the broker knows that nobody else writes to the queue.
    for _ in range(TRUSTED_AFTER):
        ok(await store.send([sending(topic, "warm")]))
    ok(await store.settle(acks(await pull(store, group, topic))))
    await decided(store, commit(await prepared(store, topic)))
    ok(await store.settle(acks(await pull(store, group, topic))))
    shop = await store.producer_group_id("shop")
    packets: list[str] = []
    real = QuickConnection._execute_command

    def noting(connection: QuickConnection, command: int, sql: Any) -> Any:
        packets.append(str(sql))
        return real(connection, command, sql)

    monkeypatch.setattr(QuickConnection, "_execute_command", noting)

    def taken() -> int:
        count = len(packets)
        packets.clear()
        return count

    own = new_id()
    ok(await store.prepare([PrepareWork(own, shop, [half(topic)])]))
    assert taken() == 1
    await decided(store, commit(own))
    assert taken() == 1
    held = await pull(store, group, topic)
    assert (len(held), taken()) == (1, 3)
    ok(await store.settle(acks(held)))
    assert taken() == 2
    ok(await store.send([sending(topic, "plain")]))
    assert taken() == 1
    # Where others write to the queue, too, the broker looks first.
    other = world.broker("other")
    ok(await other.send([sending(topic, "theirs")]))
    await decided(other, commit(await prepared(other, topic)))
    taken()
    ok(await store.send([sending(topic, "plain")]))
    assert taken() == 1 + 1 + 3  # The guess, its rollback, and the whole.
    own = await prepared(store, topic)
    taken()
    await decided(store, commit(own))
    assert taken() == 3
