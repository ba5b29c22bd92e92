"""RocketMQ's transactional producer for Node: verdicts, checks on its telemetry stream, producers that die."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from broker.rocketmq.protocol import Code
from producer_sdk import LocalTransactionState, Message, TransactionListener, TransactionProducer, TransactionState
from support.gateways import eventually, texts
from support.node import NodeError, NodeProcess

if TYPE_CHECKING:
    from producer_sdk import HalfMessages
    from support.gateways import Gateway
    from support.node import NodeReceipt, Verdict


def state(gateway: Gateway, half: NodeReceipt) -> TransactionState:
    return gateway.admin.get_message(half.transaction_id).state


def until_decided(gateway: Gateway, half: NodeReceipt) -> TransactionState:
    found: TransactionState = eventually(
        lambda: state(gateway, half), lambda its_state: its_state is not TransactionState.PREPARED
    )
    return found


def test_commits_are_delivered_and_rollbacks_are_not(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group()
    committed = [f"committed {number}" for number in range(10)]
    rolled_back = [f"rolled back {number}" for number in range(10)]
    producer = node.producer(topic, usual="unknown")
    consumer = node.push_consumer(group, topic)
    halves = {}
    for body in committed + rolled_back:
        halves[body] = producer.half(topic, body)
        (producer.commit if body in committed else producer.roll_back)(halves[body])
    for body, half in halves.items():
        wanted = TransactionState.COMMITTED if body in committed else TransactionState.ROLLED_BACK
        assert state(gateway, half) is wanted
    # What was decided may be said again, and cannot be said otherwise.
    producer.commit(halves["committed 0"])
    producer.roll_back(halves["rolled back 0"])
    for call, body in ((producer.roll_back, "committed 0"), (producer.commit, "rolled back 0")):
        with pytest.raises(NodeError) as refused:
            call(halves[body])
        assert refused.value.code == Code.INVALID_TRANSACTION_ID
    consumer.until(10)
    gateway.until_settled(group, topic)
    assert sorted(texts(consumer.messages)) == committed


def test_a_checker_that_is_late_changes_nothing(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic, usual="hold")
    committed, rolled_back = producer.half(topic, "committed"), producer.half(topic, "rolled back")
    checks = [producer.until_checked(1, body)[0] for body in ("committed", "rolled back")]
    producer.commit(committed)
    producer.roll_back(rolled_back)
    producer.answer(checks[0], "rollback")
    producer.answer(checks[1], "commit")
    # Behind those answers, by the same connection.
    producer.commit(producer.half(topic, "last"))
    assert gateway.bodies(topic) == ["committed", "last"]
    assert state(gateway, committed) is TransactionState.COMMITTED
    assert state(gateway, rolled_back) is TransactionState.ROLLED_BACK


def test_a_half_message_is_not_delivered_before_its_verdict(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic, usual="unknown")
    half = producer.half(topic, "half")
    producer.send(topic, "ordinary")
    consumer = node.push_consumer(gateway.group(), topic)
    assert texts(consumer.until(1)) == ["ordinary"]
    producer.until_checked(2, "half")
    assert texts(consumer.messages) == ["ordinary"]
    producer.commit(half)
    assert texts(consumer.until(2)) == ["ordinary", "half"]


def test_the_checker_decides(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    verdicts: dict[str, list[Verdict]] = {
        "commit": ["commit"],
        "rollback": ["rollback"],
        "unknown, then commit": ["unknown", "unknown", "commit"],
        "nothing, then rollback": ["nothing", "rollback"],
        "error, then commit": ["throw", "commit"],
    }
    producer = node.producer(topic, verdicts=verdicts)
    halves = {body: producer.half(topic, body) for body in verdicts}
    for body, half in halves.items():
        wanted = TransactionState.COMMITTED if "commit" in body else TransactionState.ROLLED_BACK
        assert (body, until_decided(gateway, half)) == (body, wanted)
    assert gateway.bodies(topic) == ["commit", "error, then commit", "unknown, then commit"]
    for body, plan in verdicts.items():
        checks = [check for check in producer.checks if check.message is not None and check.message.text == body]
        said = [check.said for check in checks]
        # A check may be on its way while the last answer is; it is answered likewise.
        assert said == plan + plan[-1:] * (len(said) - len(plan))


def test_a_check_shows_the_message_as_it_was_sent(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic, verdicts={"order 7": ["commit"]})
    half = producer.half(topic, "order 7", tag="paid", keys=["order-7", "käse"], properties={"color": "größer"})
    (check, *_) = producer.until_checked(1, "order 7")
    assert check.message is not None
    assert (check.message.message_id, check.message.topic) == (half.message_id, topic)
    assert (check.message.tag, check.message.keys) == ("paid", ("order-7", "käse"))
    assert (check.message.properties, check.message.corrupted) == ({"color": "größer"}, False)
    assert until_decided(gateway, half) is TransactionState.COMMITTED
    (message,) = node.simple_consumer(gateway.group(), topic).take(1)
    assert message.message_id == half.message_id


def test_a_producer_that_named_no_topics_is_asked(gateway: Gateway, node: NodeProcess) -> None:
    # It tells of the first topic when it opens its stream; of the others it tells nothing for minutes.
    producer = node.producer(usual="commit")
    for topic in (gateway.topic(), gateway.topic()):
        half = producer.half(topic, "order 7")
        assert until_decided(gateway, half) is TransactionState.COMMITTED


def test_whatever_is_said_and_whenever_exactly_the_committed_ones_arrive(gateway: Gateway, node: NodeProcess) -> None:
    topics = [gateway.topic(queues=4), gateway.topic(queues=1)]
    kinds = ["commit", "rollback", "check commits", "check rolls back", "unknown, then commits"]
    plans: dict[str, list[Verdict]] = {
        "check commits": ["commit"],
        "check rolls back": ["rollback"],
        "unknown, then commits": ["unknown", "commit"],
    }
    bodies = [f"{kinds[number % len(kinds)]} {number}" for number in range(120)]
    verdicts = {body: plans[kind] for body in bodies if (kind := body.rpartition(" ")[0]) in plans}
    producer = node.producer(*topics, verdicts=verdicts, usual="unknown")
    group = gateway.group()
    consumer = node.push_consumer(group, *topics)
    halves = []
    for number, body in enumerate(bodies):
        half = producer.half(topics[number % 2], body)
        halves.append(half)
        if body not in verdicts:
            (producer.commit if body.startswith("commit") else producer.roll_back)(half)
    for half in halves:
        until_decided(gateway, half)
    gateway.until_settled(group, *topics)
    wanted = sorted(body for body in bodies if "roll" not in body)
    assert len(wanted) == 72
    assert sorted(texts(consumer.messages)) == wanted


def test_another_process_answers_for_one_that_was_killed(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    consumer = node.push_consumer(gateway.group(), topic)
    with NodeProcess(gateway.endpoint) as process:
        killed = process.producer(topic, usual="unknown")
        halves = {body: killed.half(topic, body) for body in ("paid", "not paid", "not known yet")}
        killed.until_checked(1, "paid")
        process.kill()
    with NodeProcess(gateway.endpoint) as process:
        verdicts: dict[str, list[Verdict]] = {
            "paid": ["commit"],
            "not paid": ["rollback"],
            "not known yet": ["unknown", "commit"],
        }
        process.producer(topic, verdicts=verdicts)
        states = {body: until_decided(gateway, half) for body, half in halves.items()}
    assert states == {
        "paid": TransactionState.COMMITTED,
        "not paid": TransactionState.ROLLED_BACK,
        "not known yet": TransactionState.COMMITTED,
    }
    assert sorted(texts(consumer.until(2))) == ["not known yet", "paid"]


class Books(TransactionListener):
    """Says commit, and notes what it was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.asked.append((messages.transaction_id, messages[0].text))
        return LocalTransactionState.COMMIT


def test_a_producer_of_halfmqs_own_answers_for_one_that_was_killed(gateway: Gateway) -> None:
    topic, books = gateway.topic(), Books()
    with NodeProcess(gateway.endpoint) as process:
        half = process.producer(topic, usual="unknown").half(topic, "paid")
        process.kill()
    # The producer group of RocketMQ's clients is the topic.
    with TransactionProducer(gateway.endpoint, topic, books) as producer:
        producer.start()
        assert until_decided(gateway, half) is TransactionState.COMMITTED
    assert set(books.asked) == {(half.transaction_id, "paid")}


def test_node_answers_for_a_producer_of_halfmqs_own(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    with TransactionProducer(gateway.endpoint, topic, Books()) as producer:
        half = producer.prepare([Message(topic, "paid"), Message(topic, "and sent")])
    answering = node.producer(topic, usual="commit")
    (check, *_) = answering.until_checked(1, "paid")
    assert check.message is not None
    assert check.message.message_id == f"01{uuid.UUID(half.transaction_id).hex.upper()}"
    eventually(lambda: gateway.bodies(topic), lambda bodies: bodies == ["and sent", "paid"])
