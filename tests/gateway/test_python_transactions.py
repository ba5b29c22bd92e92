"""Transactions of official producers: verdicts, check-backs, and what becomes of those that nobody decides."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from halfmq.v1 import transaction_pb2
from producer_sdk import Admin
from support.operators import CHECK_AGAIN, COMMIT, COMMITTED, PARKED, PREPARED, ROLLED_BACK, Operator
from support.rocketmq import ClientError, await_handled

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient, Received, Verdict

SAID_COMMIT = transaction_pb2.CHECK_VERDICT_COMMIT
SAID_UNKNOWN = transaction_pb2.CHECK_VERDICT_UNKNOWN
SAID_NOTHING = transaction_pb2.CHECK_VERDICT_UNSPECIFIED
CYCLE = ["commit", "rollback", "commit in check", "rollback in check", "unknown"]


def says_commit(_: Received) -> Verdict:
    return "COMMIT"


def says_rollback(_: Received) -> Verdict:
    return "ROLLBACK"


def says_unknown(_: Received) -> Verdict:
    return "UNKNOWN"


def test_of_all_kinds_of_ends_exactly_what_was_committed_arrives(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin, operator: Operator
) -> None:
    def checker(message: Received) -> Verdict:
        if " in check " not in message.text:
            return "UNKNOWN"
        return "COMMIT" if message.text.startswith("commit") else "ROLLBACK"

    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic, checker=checker)
    committed = set()
    for number in range(120):
        kind = CYCLE[number % 5]
        transaction = producer.send_in_transaction(topic, f"{kind} {number}")
        if kind == "commit":
            transaction.commit()
        elif kind == "rollback":
            transaction.rollback()
        if kind.startswith("commit"):
            committed.add(f"{kind} {number}")
    operator.await_undecided(topic, 24)
    await_handled(admin, group, topic)
    assert len(committed) == 48
    assert sorted(consumer.received.texts()) == sorted(committed)
    left = {operator.transaction(each.transaction_id).halves[0].body for each in operator.undecided(topic)}
    assert left == {f"unknown {number}".encode() for number in range(4, 120, 5)}


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "rollback"])
def test_a_verdict_counts_though_a_check_that_is_under_way_is_answered_otherwise(
    committed: bool,
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    group: str,
    admin: Admin,
    operator: Operator,
) -> None:
    decided = threading.Event()

    def checker(_: Received) -> Verdict:
        assert decided.wait(60)
        return "ROLLBACK" if committed else "COMMIT"

    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic, checker=checker)
    transactions = [producer.send_in_transaction(topic, f"order {number}") for number in range(10)]
    for transaction in transactions:
        operator.wait(transaction.transaction_id, lambda found: found.check_count > 0)
    producer.checks.await_count(1)
    for transaction in transactions:
        (transaction.commit if committed else transaction.rollback)()
    decided.set()
    for transaction in transactions:
        # Answers do not say to which check they are: they are noted at the last one.
        operator.wait(transaction.transaction_id, lambda found: any(e.HasField("answered_at") for e in found.checks))
    if committed:
        await_handled(admin, group, topic)
    wanted = [f"order {number}" for number in range(10)] if committed else []
    assert sorted(consumer.received.texts()) == wanted
    for transaction in transactions:
        found = operator.transaction(transaction.transaction_id)
        assert found.state == (COMMITTED if committed else ROLLED_BACK)
        assert found.op.source == transaction_pb2.VERDICT_SOURCE_PRODUCER


@pytest.mark.parametrize("commits", [10, 0, 5])
def test_transactions_that_are_never_ended_end_as_the_checker_says(
    commits: int,
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    group: str,
    admin: Admin,
    operator: Operator,
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(
        broker.endpoint, topic, checker=lambda message: "COMMIT" if int(message.text) < commits else "ROLLBACK"
    )
    transactions = [producer.send_in_transaction(topic, f"{number}") for number in range(10)]
    operator.await_undecided(topic, 0)
    if commits:
        await_handled(admin, group, topic)
    assert sorted(consumer.received.texts()) == [f"{number}" for number in range(commits)]
    for number, transaction in enumerate(transactions):
        found = operator.transaction(transaction.transaction_id)
        assert found.state == (COMMITTED if number < commits else ROLLED_BACK)
        assert found.op.source == transaction_pb2.VERDICT_SOURCE_CHECK
        assert found.checks[-1].client_id == producer.client_id


def test_a_check_says_which_transaction_and_shows_the_whole_message(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    producer = python.producer(broker.endpoint, topic, checker=says_commit)
    body = bytes(range(256))
    transaction = producer.send_in_transaction(topic, body, tag="paid", keys=["7", "8"], properties={"amount": "12"})
    check = producer.checks.await_count(1)[0]
    assert check.message_id == transaction.message_id
    assert check.transaction_id == transaction.transaction_id
    assert (check.topic, check.body, check.tag, check.keys) == (topic, body, "paid", {"7", "8"})
    assert check.properties == {"amount": "12"}
    assert check.message_type == "TRANSACTION"
    assert check.born_host
    assert not check.corrupted
    (message,) = python.simple_consumer(broker.endpoint, group, topic).receive_all(1)
    assert message.message_id == transaction.message_id
    assert (message.body, message.tag, message.keys, message.properties) == (body, "paid", {"7", "8"}, {"amount": "12"})


def test_a_half_message_is_not_delivered_before_its_commit(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic, checker=says_unknown)
    transaction = producer.send_in_transaction(topic, "half")
    producer.checks.await_count(2)  # Some time, and answers that say nothing, make no difference.
    producer.send(topic, "sent later")
    consumer.received.await_text("sent later")
    assert consumer.received.texts() == ["sent later"]
    transaction.commit()
    assert consumer.received.await_text("half").message_id == transaction.message_id


def test_a_second_verdict_of_the_same_kind_changes_nothing_and_one_of_the_other_kind_is_refused(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin, operator: Operator
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic, checker=says_commit)
    committed, dropped = (producer.send_in_transaction(topic, body) for body in ("committed", "dropped"))
    for _ in range(3):
        committed.commit()
        dropped.rollback()
    for verdict, state in ((committed.rollback, "COMMITTED"), (dropped.commit, "ROLLED_BACK")):
        with pytest.raises(ClientError, match=f"its recorded outcome is {state}") as refused:
            verdict()
        assert (refused.value.kind, refused.value.code) == ("ClientException", "INVALID_TRANSACTION_ID")
    await_handled(admin, group, topic)
    assert consumer.received.texts() == ["committed"]
    assert operator.transaction(committed.transaction_id).state == COMMITTED
    assert operator.transaction(dropped.transaction_id).state == ROLLED_BACK


def test_a_checker_that_raises_or_does_not_know_is_asked_again(
    broker: BrokerProcess, python: OfficialClient, topic: str, operator: Operator
) -> None:
    verdicts: list[Verdict] = ["RAISE", "UNKNOWN"]
    producer = python.producer(broker.endpoint, topic, checker=lambda _: verdicts.pop(0) if verdicts else "COMMIT")
    transaction = producer.send_in_transaction(topic, "order")
    found = operator.await_state(transaction.transaction_id, COMMITTED)
    said = [check.verdict for check in found.checks]
    assert found.check_count == len(said) >= 3
    assert said[0] == SAID_NOTHING
    # On a slow machine a check may have gone out before the answer to the one before was here.
    answers = [verdict for verdict in said if verdict != SAID_NOTHING]
    assert list(dict.fromkeys(answers)) == [SAID_UNKNOWN, SAID_COMMIT]
    assert answers.count(SAID_UNKNOWN) == 1


def test_a_producer_that_named_no_topic_is_asked_about_all_to_which_it_sends(
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    admin: Admin,
    operator: Operator,
    unique: Callable[[str], str],
) -> None:
    producer = python.producer(
        broker.endpoint, checker=lambda message: "UNKNOWN" if message.text == "stays open" else "COMMIT"
    )
    producer.send_in_transaction(topic, "stays open")
    producer.checks.await_count(4)  # By now it has told its settings again, and will not for minutes.
    later = admin.create_topic(unique("later")).name
    transaction = producer.send_in_transaction(later, "order")
    found = operator.await_state(transaction.transaction_id, COMMITTED)
    assert found.checks[-1].client_id == producer.client_id


def test_a_producer_of_another_topic_is_not_asked(
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    admin: Admin,
    operator: Operator,
    unique: Callable[[str], str],
) -> None:
    other_topic = admin.create_topic(unique("other")).name
    other = python.producer(broker.endpoint, other_topic, checker=says_unknown)
    own = python.producer(broker.endpoint, topic, checker=says_commit)
    of_other = other.send_in_transaction(other_topic, "stays open")
    for number in range(10):
        own.send_in_transaction(topic, f"order {number}")
    operator.await_undecided(topic, 0)
    other.checks.await_count(3)
    assert {check.transaction_id for check in other.checks.all()} == {of_other.transaction_id}
    assert of_other.transaction_id not in {check.transaction_id for check in own.checks.all()}


def test_no_check_is_spent_while_the_producer_is_away_and_the_next_one_is_asked(
    broker: BrokerProcess,
    python: OfficialClient,
    new_python: Callable[..., OfficialClient],
    topic: str,
    group: str,
    admin: Admin,
    operator: Operator,
    unique: Callable[[str], str],
) -> None:
    # A transaction of another producer, which is here, tells how many checks would have gone out.
    clock_topic = admin.create_topic(unique("clock")).name
    clock = python.producer(broker.endpoint, clock_topic, checker=says_unknown)
    dying = new_python()
    producer = dying.producer(broker.endpoint, topic, checker=says_unknown)
    transaction = producer.send_in_transaction(topic, "half done")
    dying.kill()
    clock.send_in_transaction(clock_topic, "tick")
    # By then the broker has noticed.
    clock.checks.await_count(4)
    spent = operator.transaction(transaction.transaction_id).check_count
    clock.checks.await_count(9)
    found = operator.transaction(transaction.transaction_id)
    assert found.state == PREPARED
    assert found.check_count == spent
    assert [each.check_count for each in operator.undecided(topic)] == [spent]
    successor = python.producer(broker.endpoint, topic, checker=says_commit)
    found = operator.await_state(transaction.transaction_id, COMMITTED)
    assert found.checks[-1].client_id == successor.client_id
    assert {check.transaction_id for check in successor.checks.all()} == {transaction.transaction_id}
    (message,) = python.simple_consumer(broker.endpoint, group, topic).receive_all(1)
    assert (message.text, message.message_id) == ("half done", transaction.message_id)


def test_a_producer_that_was_shut_down_is_not_asked_any_more(
    broker: BrokerProcess, python: OfficialClient, topic: str, operator: Operator
) -> None:
    leaving = python.producer(broker.endpoint, topic, checker=says_unknown)
    transaction = leaving.send_in_transaction(topic, "order")
    leaving.checks.await_count(1)
    leaving.shutdown()
    asked = len(leaving.checks.all())
    staying = python.producer(broker.endpoint, topic, checker=says_commit)
    operator.await_state(transaction.transaction_id, COMMITTED)
    assert len(leaving.checks.all()) == asked
    assert staying.checks.texts() == ["order"]


def test_a_transaction_that_nobody_decides_is_checked_fifteen_times_and_then_parked(
    new_broker: Callable[..., BrokerProcess], python: OfficialClient, unique: Callable[[str], str]
) -> None:
    broker = new_broker("sqlite", first_check=0.1, check_interval=0.1)
    topic, group = unique("orders"), unique("shop")
    verdict: list[Verdict] = ["UNKNOWN"]
    with Operator(broker.endpoint) as operator, Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group)
        consumer = python.push_consumer(broker.endpoint, group, topic)
        producer = python.producer(broker.endpoint, topic, checker=lambda _: verdict[0])
        transaction = producer.send_in_transaction(topic, "open")
        operator.await_state(transaction.transaction_id, PARKED)
        # Until another one is parked as well, nobody is asked about the first one again.
        second = producer.send_in_transaction(topic, "second")
        operator.await_state(second.transaction_id, PARKED)
        assert producer.checks.texts().count("open") == 15
        found = operator.transaction(transaction.transaction_id)
        assert found.check_count == 15
        assert [check.check_number for check in found.checks] == list(range(1, 16))
        assert SAID_UNKNOWN in [check.verdict for check in found.checks]
        assert {check.client_id for check in found.checks} == {producer.client_id}
        assert found.HasField("parked_at")
        assert len(operator.undecided(topic)) == 2
        assert consumer.received.all() == []
        # An operator has it checked again.
        verdict[0] = "COMMIT"
        operator.resolve(transaction.transaction_id, CHECK_AGAIN)
        assert consumer.received.await_text("open").message_id == transaction.message_id
        # The producer of the other one comes too late, and is told who can help.
        with pytest.raises(ClientError, match="an operator decides it") as refused:
            second.commit()
        assert refused.value.code == "INVALID_TRANSACTION_ID"
        operator.resolve(second.transaction_id, COMMIT)
        assert consumer.received.await_text("second").message_id == second.message_id
