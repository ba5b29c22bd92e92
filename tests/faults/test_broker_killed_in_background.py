"""A broker is killed right before or right after the database commits what it does by itself; another one goes on.

Checks that could not be sent, half messages that were decided already, and forgetting what is past its time. Here
nobody repeats a call: what the dead broker left is the successor's to find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults.client import COMMITTED, PREPARED, ROLLED_BACK, Client, message, new_id, unique
from faults.delivery_operations import later
from faults.mysql_proxy import Delay, MySqlProxy
from faults.sites import Site, killed_at_commit
from faults.tables import count, left_over, query
from halfmq.v1 import admin_pb2
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.operations import When
    from support.databases import Kind

# The storage deletes so many rows in one database transaction.
CHUNK = 1000
MESSAGES = CHUNK + 500


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_check_that_could_not_be_sent(site: Site, when: When) -> None:
    client, topic, producers, transaction_id = site.client, site.client.make_topic(), unique("producers"), new_id()
    with site.victim() as victim, victim.client.checks(producers) as leaving:
        # The producer is gone once its check is counted; cut off as well, the broker finds the count and takes it back.
        victim.proxy.on_commit(matching="INSERT INTO transaction_check", when="after", action=leaving.leave)
        rule = victim.proxy.on_commit(matching="DELETE FROM transaction_check", when=when, action=victim.broker.kill)
        victim.client.prepare(producers, transaction_id, [message(topic, "asked about")])
        rule.wait(30)
    found = client.transaction(transaction_id)
    spent = 1 if when == "before" else 0
    assert (found.state, found.check_count) == (PREPARED, spent)
    assert [(each.check_number, each.client_id) for each in found.checks] == [(1, "")][:spent]
    with client.checks(producers) as staying:
        check = staying.next(transaction_id)
        assert check.check_number == spent + 1
        staying.commit(check)
    assert [each.message.body for each in client.drain(client.make_group(), topic)] == [b"asked about"]
    assert left_over(site.database) == []


def test_half_messages_of_decided_transactions(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    committed, rolled_back, undecided = new_id(), new_id(), new_id()
    with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
        topic, group, producers = client.make_topic(), client.make_group(), unique("producers")
        for transaction_id in (committed, rolled_back, undecided):
            halves = [message(topic, f"{transaction_id} {number}") for number in range(2)]
            client.prepare(producers, transaction_id, halves, check_after=3600)
        query(database, "CREATE TABLE kept AS SELECT * FROM half_message")
        client.commit(committed)
        client.roll_back(rolled_back)
        delivered = [each.message.body.decode() for each in client.drain(group, topic)]
    # As a repeated Prepare leaves them that the verdict overtook.
    overtaken = "WHERE transaction_id IN (SELECT transaction_id FROM op_record)"
    query(database, f"INSERT INTO half_message SELECT * FROM kept {overtaken}")
    query(database, "DROP TABLE kept")
    assert count(database, "half_message") == 6
    killed_at_commit(database, matching="DELETE .*half_message", when="before")
    assert count(database, "half_message") == 6
    killed_at_commit(database, matching="DELETE .*half_message", when="after")
    assert count(database, "half_message") == 2
    with BrokerProcess(database) as successor, Client(successor.endpoint) as client:
        states = [client.transaction(each).state for each in (committed, rolled_back, undecided)]
        assert states == [COMMITTED, ROLLED_BACK, PREPARED]
        assert client.undecided(producers) == {undecided}
        assert sorted(delivered) == [f"{committed} {number}" for number in range(2)]
        assert client.drain(group, topic) == []
        assert sorted(e.message.body.decode() for e in client.drain(client.make_group(), topic)) == sorted(delivered)
    assert left_over(database) == []


def test_forgetting(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    checked, resolved, undecided = new_id(), new_id(), new_id()
    with BrokerProcess(database, first_check=0.05) as broker, Client(broker.endpoint) as client:
        topic, group, producers = unique("orders"), client.make_group(), unique("producers")
        client.create_topic(topic, 1, retention=1e-6)
        assert client.pull(group, topic) == []  # the group joins
        client.prepare(producers, checked, [message(topic, "checked")])
        with client.checks(producers) as asked:
            asked.commit(asked.next(checked))
        client.prepare(producers, resolved, [message(topic, "resolved")], check_after=3600)
        client.resolve(resolved, admin_pb2.RESOLUTION_ROLLBACK)
        client.prepare(producers, undecided, [message(topic, "undecided")], check_after=3600)
        client.send_all([message(topic, f"{number}") for number in range(MESSAGES - 1)])
    query(database, "DELETE FROM maintenance_turn")

    turn = "SELECT broker_id FROM maintenance_turn WHERE task = 'retention'"
    killed_at_commit(database, matching="UPDATE maintenance_turn", when="before", broker_id="first")
    assert query(database, turn) == []
    killed_at_commit(database, matching="UPDATE maintenance_turn", when="after", broker_id="first")
    assert query(database, turn) == [("first",)]
    assert kept(database) == (MESSAGES, 0)
    # The dead broker keeps its turn for a time; when that is over, the next one has it.
    query(database, "UPDATE maintenance_turn SET until = 0")
    forgetful = {"broker_id": "second", "retention_hours": 1e-7}
    killed_at_commit(database, matching="DELETE FROM message", when="before", **forgetful)
    assert query(database, turn) == [("second",)]
    assert kept(database) == (MESSAGES, 0)
    killed_at_commit(database, matching="DELETE FROM message", when="after", **forgetful)
    assert kept(database) == (MESSAGES - CHUNK, CHUNK)
    tables = ("op_record", "transaction_check", "operator_action")
    killed_at_commit(database, matching="DELETE FROM op_record", when="before", **forgetful)
    assert kept(database) == (0, MESSAGES)
    assert [count(database, table) for table in tables] == [MESSAGES + 1, 1, 1]
    killed_at_commit(database, matching="DELETE FROM op_record", when="after", **forgetful)
    assert [count(database, table) for table in tables] == [MESSAGES + 1 - CHUNK, 0, 0]
    assert left_over(database) == []

    with MySqlProxy.to(database) as proxy:
        done = proxy.on_commit(matching="DELETE FROM op_record", when="after", action=Delay(0))
        with BrokerProcess(proxy.url(database), **forgetful) as successor, Client(successor.endpoint) as client:
            done.wait(30)
            assert [count(database, table) for table in tables] == [0, 0, 0]
            assert client.transaction(undecided).state == PREPARED
            (queue,) = client.offsets(topic, group)
            assert (queue.min_offset, queue.max_offset, queue.lag) == (MESSAGES, MESSAGES, 0)
            assert client.commit(undecided).released[0].offset == MESSAGES
            assert [each.message.body for each in client.drain(group, topic)] == [b"undecided"]
    assert left_over(database) == []


def test_moving_scheduled_messages(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    """Whatever dies, each goes into the log once, and in the order of the times."""
    database = fresh_database(kind)
    transaction_id = new_id()
    with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
        topic, group, producers = client.make_topic(1), client.make_group(), unique("producers")
        client.send_all([later(topic, f"{number}", keys=["k"]) for number in range(MESSAGES)])
        halves = [later(topic, f"half {number}") for number in range(2)]
        client.prepare(producers, transaction_id, halves, check_after=3600)
        client.commit(transaction_id)
    # Their time has come while no broker was there.
    query(database, "UPDATE scheduled_message SET deliver_at = deliver_at - 3600000000")
    moves = "FROM scheduled_message .*FOR UPDATE"
    killed_at_commit(database, matching=moves, when="before")
    assert (count(database, "message"), count(database, "scheduled_message")) == (0, MESSAGES + 2)
    killed_at_commit(database, matching=moves, when="after")
    assert (count(database, "message"), count(database, "scheduled_message")) == (CHUNK, MESSAGES + 2 - CHUNK)
    assert count(database, "message_key") == CHUNK
    with BrokerProcess(database) as successor, Client(successor.endpoint) as client:
        expected = [*(str(number) for number in range(MESSAGES)), "half 0", "half 1"]
        delivered: list[str] = []
        while len(delivered) < len(expected):
            deliveries = client.pull(group, topic, wait=20)
            client.ack([each.receipt_handle for each in deliveries])
            delivered += [each.message.body.decode() for each in deliveries]
        assert delivered == expected
        assert [each.offset for each in client.log(topic)[0]] == list(range(len(expected)))
        released = client.transaction(transaction_id).op.released
        assert [place.offset for place in released] == [MESSAGES, MESSAGES + 1]
    assert left_over(database) == []


def test_clearing_a_deleted_topic(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
        topic, kept_topic = client.make_topic(1), client.make_topic(1)
        client.send_all([message(topic, f"{number}", keys=["k"], dedup_key=f"{number}") for number in range(MESSAGES)])
        client.send_all([message(kept_topic, "kept", keys=["k"], dedup_key="kept")])
        client.delete_topic(topic)
    query(database, "DELETE FROM maintenance_turn")
    tables = ("message", "message_key", "dedup_key")
    steps: tuple[When, ...] = ("before", "after")
    for step in steps:
        killed_at_commit(database, matching="DELETE FROM message ", when=step, broker_id="first")
        left = MESSAGES + 1 - (CHUNK if step == "after" else 0)
        assert [count(database, table) for table in tables] == [left, left, MESSAGES + 1]
    killed_at_commit(database, matching="DELETE FROM topic ", when="before", broker_id="first")
    assert [count(database, table) for table in (*tables, "queue", "topic")] == [1, 1, 1, 1, 2]
    killed_at_commit(database, matching="DELETE FROM topic ", when="after", broker_id="first")
    assert count(database, "topic") == 1
    with BrokerProcess(database) as successor, Client(successor.endpoint) as client:
        assert client.topics() == {kept_topic: 1}
        assert [each.body for each in client.log(kept_topic)[0]] == [b"kept"]
    assert left_over(database) == []


def kept(database: str) -> tuple[int, int]:
    """How many messages there are, and the first offset that is kept."""
    ((first,),) = query(database, "SELECT MAX(min_offset) FROM queue")
    return count(database, "message"), int(first)
