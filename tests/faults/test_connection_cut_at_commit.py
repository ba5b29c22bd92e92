"""The broker's database connection is cut right before or right after a COMMIT: the client notices nothing.

The broker runs the batch again on a new connection. It must tell the client what the first run would have told it, and
the write must have one effect. HALFMQ_FAULT_ROUNDS is the number of cuts of each operation before, and as many after,
the COMMIT (10; the full campaign is 500, which makes 1000 for each).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults.client import PARKED, Client, message, new_id, unique
from faults.delivery_operations import DELIVERY_OPERATIONS, later
from faults.operations import MAX_CHECKS, OPERATIONS, CheckClaim, Operation, Prepare, When
from faults.sites import Proxied, rounds
from halfmq.v1 import admin_pb2
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind

# Operations that wait for a check.
SLOW = (CheckClaim,)


@pytest.fixture(scope="module")
def proxied(kind: Kind) -> Iterator[Proxied]:
    database = create_database(server_url(kind))
    with Proxied(database) as made:
        yield made
    drop_database(database)
    assert made.broker.process.returncode == 0, made.broker.log
    assert made.broker.count("[error") == 0, made.broker.log


@pytest.fixture
def client(proxied: Proxied) -> Iterator[Client]:
    yield proxied.client
    proxied.proxy.clear()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation_type", [*OPERATIONS, *DELIVERY_OPERATIONS], ids=lambda each: each.__name__)
@pytest.mark.timeout(600 + 3 * rounds(10))
def test_the_client_sees_one_success(
    proxied: Proxied, client: Client, operation_type: type[Operation], when: When
) -> None:
    operation = operation_type(client)
    for _ in range(rounds(3 if issubclass(operation_type, SLOW) else 10)):
        operation.arrange(client)
        rule = proxied.proxy.on_commit(matching=operation.commits, when=when, action="cut")
        operation.act(client)
        assert rule.fired == 1
        proxied.proxy.clear()
        operation.confirm(client, lost=False)
    assert operation.reasons == []
    operation.verify(client)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.timeout(600 + 6 * rounds(1))
def test_a_transaction_is_parked_once(proxied: Proxied, client: Client, when: When) -> None:
    topic, producers = client.make_topic(), unique("producers")
    for _ in range(rounds(1)):
        rule = proxied.proxy.on_commit(matching="parked_at = [0-9]", when=when, action="cut")
        transaction_id = new_id()
        client.prepare(producers, transaction_id, [message(topic, "never answered")])
        with client.checks(producers) as asked:
            numbers = [asked.next(transaction_id).check_number for _ in range(MAX_CHECKS)]
            assert numbers == list(range(1, MAX_CHECKS + 1))
            rule.wait(30)
        if when == "before":
            proxied.broker.await_log(transaction_id, "is parked")
        found = client.transaction(transaction_id)
        assert (found.state, found.check_count, len(found.checks)) == (PARKED, MAX_CHECKS, MAX_CHECKS)
        proxied.proxy.clear()
    assert client.log(topic) == {0: [], 1: []}


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_operator_sees_one_success(proxied: Proxied, client: Client, when: When) -> None:
    operation = Prepare(client)
    operation.arrange(client)
    operation.act(client)
    proxied.proxy.on_commit(matching="INSERT INTO operator_action", when=when, action="cut", times=2)
    client.resolve(operation.transaction_id, admin_pb2.RESOLUTION_CHECK_AGAIN)
    client.resolve(operation.transaction_id, admin_pb2.RESOLUTION_COMMIT)
    actions = [action.action for action in client.transaction(operation.transaction_id).operator_actions]
    assert actions == ["CHECK_AGAIN", "COMMIT"]
    operation.expected += operation.bodies()
    operation.verify(client)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.timeout(600 + 3 * rounds(10))
def test_scheduled_messages_move_once(proxied: Proxied, client: Client, when: When) -> None:
    topic, group = client.make_topic(1), client.make_group()
    for turn in range(rounds(10)):
        bodies = [f"{turn} {number}" for number in range(3)]
        rule = proxied.proxy.on_commit(matching="FROM scheduled_message .*FOR UPDATE", when=when, action="cut")
        # Long enough for a busy machine to store them before they are due: what is due goes to the log at once.
        client.send_all([later(topic, body, 0.5) for body in bodies])
        delivered: list[str] = []
        while len(delivered) < len(bodies):
            deliveries = client.pull(group, topic, wait=20)
            client.ack([each.receipt_handle for each in deliveries])
            delivered += [each.message.body.decode() for each in deliveries]
        rule.wait(10)
        proxied.proxy.clear()
        assert delivered == bodies
        assert len(client.log(topic)[0]) == 3 * (turn + 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_names_are_made_once(proxied: Proxied, client: Client, when: When) -> None:
    rules = [
        proxied.proxy.on_commit(matching=f"INSERT INTO {table} ", when=when, action="cut")
        for table in ("topic", "consumer_group")
    ]
    topic = client.make_topic(queues=3)
    rules[0].wait(10)
    group = client.make_group()
    rules[1].wait(10)
    # What the first run in vain made must not be remembered.
    transaction_id = new_id()
    client.prepare("producers", transaction_id, [message(topic, "first")])
    client.commit(transaction_id)
    client.send(message(topic, "second"))
    assert sorted(each.message.body for each in client.drain(group, topic)) == [b"first", b"second"]
    assert len(client.offsets(topic, group)) == 3
    with pytest.raises(Exception, match="exists already"):
        client.create_topic(topic, 3)
    with pytest.raises(Exception, match="exists already"):
        client.create_group(group)
