"""A broker is killed right before or right after the database commits a write; another broker takes the call again.

Whatever the dead broker did, the repeated call has one effect: nothing is lost, nothing is doubled, and nothing half
done stays behind. HALFMQ_FAULT_ROUNDS is the number of kills of each operation before, and as many after, the COMMIT
(1; the full campaign is 1000). With HALFMQ_FAULT_ALL=1 every operation takes its turn on every database; else some are
killed before the COMMIT on one database and after it on the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from faults.client import PARKED, PREPARED, UNAVAILABLE, Client, code_of, message, new_id, unique
from faults.operations import SETTLED_BEFORE, Operation, When
from faults.sites import Proxied, Site, rounds
from faults.slices import KILLED
from faults.tables import left_over
from halfmq.v1 import admin_pb2
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

pytestmark = pytest.mark.timeout(600 + 20 * rounds(1))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation_type", KILLED, ids=lambda each: each.__name__)
def test_another_broker_takes_the_call_again(site: Site, operation_type: type[Operation], when: When) -> None:
    operation = operation_type(site.client)
    for _ in range(rounds(1)):
        operation.arrange(site.client)
        with site.victim() as victim:
            rule = victim.proxy.on_commit(matching=operation.commits, when=when, action=victim.broker.kill)
            with pytest.raises(grpc.RpcError) as lost:
                operation.act(victim.client)
            assert code_of(lost.value) is UNAVAILABLE
            rule.wait(10)
        operation.survey(site.client, worked=when == "after")
        operation.act(site.client)
        operation.confirm(site.client, lost=when == "after")
    operation.verify(site.client)
    assert left_over(site.database) == []
    # A receipt that the dead broker had settled is refused as such, never taken for another delivery's.
    assert set(operation.reasons) <= (SETTLED_BEFORE if when == "after" else set())


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_broker_parks_what_the_dead_one_was_parking(
    kind: Kind, fresh_database: Callable[[Kind], str], when: When
) -> None:
    checks = 2
    settings = {"first_check": 0.05, "check_interval": 0.1, "max_checks": checks}
    database = fresh_database(kind)
    producers, body = unique("producers"), "decided by an operator"
    with Proxied(database, **settings) as victim:
        topic = victim.client.make_topic()
        rule = victim.proxy.on_commit(matching="parked_at = [0-9]", when=when, action=victim.broker.kill)
        transaction_id = new_id()
        victim.client.prepare(producers, transaction_id, [message(topic, body)])
        with victim.client.checks(producers) as asked:
            numbers = [asked.next(transaction_id).check_number for _ in range(checks)]
            assert numbers == list(range(1, checks + 1))
            with pytest.raises(grpc.RpcError):
                asked.next(transaction_id)
        rule.wait(30)
    with BrokerProcess(database, **settings) as successor, Client(successor.endpoint) as client:
        if when == "before":
            successor.await_log(transaction_id, "is parked")
        found = client.transaction(transaction_id)
        assert (found.state, found.check_count) == (PARKED, checks)
        assert client.log(topic) == {0: [], 1: []}
        client.resolve(transaction_id, admin_pb2.RESOLUTION_CHECK_AGAIN)
        assert client.transaction(transaction_id).state == PREPARED
        with client.checks(producers) as asked:
            check = asked.next(transaction_id)
            assert check.check_number == checks + 1
            asked.commit(check)
        assert [each.message.body.decode() for each in client.drain(client.make_group(), topic)] == [body]
