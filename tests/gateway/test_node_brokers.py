"""RocketMQ's clients for Node and the broker itself: restarted under them, with keys, with TLS, with namespaces."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from broker.rocketmq.protocol import Code
from consumer_sdk import TimelineEventType, TlsConfig
from producer_sdk import TransactionState
from support.certificates import Authority
from support.databases import ALL_KINDS, create_database, drop_database, server_url
from support.gateways import Gateway, eventually, free_address, texts, unique
from support.node import NodeError, NodeProcess, own_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.node import NodeMessage, Producer

EVERYWHERE = os.environ.get("HALFMQ_ROCKETMQ_EVERYWHERE") == "1"


@pytest.fixture(params=ALL_KINDS if EVERYWHERE else ["sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'halfmq.db'}"
        return
    url = create_database(server_url(request.param))
    yield url
    drop_database(url)


class Sender:
    """An application that sends each message until it is told that it was taken in."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sent: list[str] = []
        self.failures = 0
        self._producer = producer
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            body = f"order {len(self.sent)}"
            try:
                self._producer.send(self._topic, body)
            except NodeError:
                self.failures += 1
                self._ending.wait(0.1)
            else:
                self.sent.append(body)

    def until(self, more: int) -> None:
        """Waits until so many more were sent."""
        wanted = len(self.sent) + more
        eventually(lambda: len(self.sent), lambda count: count >= wanted)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_nothing_is_lost_when_the_broker_is_started_anew(database: str, kill: bool) -> None:
    with Gateway(database) as gateway, NodeProcess(gateway.endpoint) as node:
        topic, other, group, simple_group = gateway.topic(), gateway.topic(), gateway.group(), gateway.group()
        producer = node.producer(topic, other, verdicts={"half": ["hold"]})
        consumer = node.push_consumer(group, topic)
        producer.send(other, "held")
        simple = node.simple_consumer(simple_group, other)
        (held,) = simple.take(1, invisible=60)
        half = producer.half(other, "half")
        producer.until_checked(1, "half")
        sender = Sender(producer, topic)
        try:
            consumer.until(20)
            gateway.stop(kill=kill)
            failures = sender.failures
            eventually(lambda: sender.failures, lambda count: count > failures)
            gateway.start()
            sender.until(20)
        finally:
            sender.end()
        checked = len(producer.checks)
        gateway.until_settled(group, topic)
        # Every message that the producer was told of, and every other one that came in, reached the handler.
        handled = set(texts(consumer.messages))
        assert handled >= set(sender.sent)
        assert handled == set(gateway.bodies(topic))
        # What was received before is acked after.
        simple.ack(held)
        assert gateway.lag(simple_group, other) == 0
        # The same producer is asked again, on the stream that it opened again.
        last = producer.until_checked(checked + 1, "half")[-1]
        producer.answer(last, "commit")
        eventually(
            lambda: gateway.admin.get_message(half.transaction_id).state,
            lambda state: state is TransactionState.COMMITTED,
        )
        assert texts(simple.take(1)) == ["half"]


@pytest.fixture(params=["mariadb", "mysql"] if EVERYWHERE else ["mariadb"])
def server_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database that several brokers can share."""
    url = create_database(server_url(request.param))
    yield url
    drop_database(url)


def test_another_broker_makes_up_for_one_that_dies(server_database: str) -> None:
    addresses = [free_address(), free_address()]
    settings = {"rocketmq_endpoints": ",".join(addresses), "lease": 3}
    with (
        Gateway(server_database, listen=addresses[0], **settings) as gateway,
        Gateway(server_database, listen=addresses[1], **settings) as dying,
        NodeProcess(gateway.endpoint) as node,
    ):
        topic, paid, group = gateway.topic(), gateway.topic(), gateway.group()
        bodies = [f"half {number}" for number in range(4)]
        producer = node.producer(topic, paid, usual="hold")
        consumer = node.push_consumer(group, topic)
        # By turns through one broker and the other.
        halves = {body: producer.half(paid, body) for body in bodies}
        for body in bodies:
            producer.until_checked(1, body)
        sender = Sender(producer, topic)
        try:
            consumer.until(20)
            dying.stop(kill=True)
            sender.until(20)
        finally:
            sender.end()
        # The client sends again by itself, to the other broker.
        assert sender.failures == 0
        gateway.until_settled(group, topic)
        assert set(texts(consumer.messages)) == set(sender.sent) == set(gateway.bodies(topic))
        refused = []
        for body, half in halves.items():
            try:
                producer.commit(half)
            except NodeError:
                refused.append(body)
        # Their verdicts go to the broker that is dead; the other one asks.
        assert len(refused) == 2
        for body in refused:
            before = len(producer.until_checked(1, body))
            producer.answer(producer.until_checked(before + 1, body)[-1], "commit")
        eventually(lambda: gateway.bodies(paid), lambda found: found == bodies)


def keys_file(folder: Path) -> Path:
    file = folder / "keys"
    file.write_text("# shop\nshop:shop's secret\nbooks:another secret\n", encoding="utf-8")
    return file


def credentials(key: str, secret: str, **more: str) -> dict[str, dict[str, str]]:
    return {"sessionCredentials": {"accessKey": key, "accessSecret": secret, **more}}


def test_clients_need_one_of_the_keys(tmp_path: Path) -> None:
    with (
        Gateway(f"sqlite:///{tmp_path / 'halfmq.db'}", rocketmq_keys=keys_file(tmp_path)) as gateway,
        NodeProcess(gateway.endpoint) as node,
    ):
        topic, group = gateway.topic(), gateway.group()
        wrong = credentials("shop", "wrong")
        starting = [node.begin_producer(topic, **wrong), node.begin_producer(topic, gateway.topic(), **wrong)]
        for key, secret in (("shop", "shop's secret"), ("books", "another secret")):
            good = credentials(key, secret, securityToken="token")
            producer = node.producer(topic, usual="commit", **good)
            producer.send(topic, f"of {key}")
            producer.half(topic, f"checked for {key}")
        consumer = node.push_consumer(group, topic, outcomes={"of shop": ["failure", "success"]}, **good)
        consumer.until(5)
        gateway.until_settled(group, topic)
        assert sorted(set(texts(consumer.messages))) == gateway.bodies(topic)
        simple = node.simple_consumer(gateway.group(), topic, **good)
        simple.ack(*simple.take(4))
        for bad in (
            credentials("shop", "another secret"),
            credentials("nobody", "shop's secret"),
            credentials("shop", ""),
            {},
        ):
            # Those that name no topic first find out when they send.
            with pytest.raises(NodeError) as refused:
                node.producer(**bad).send(topic, "forged")
            assert (refused.value.name, refused.value.code) == ("UnauthorizedException", Code.UNAUTHORIZED)
        for producer in starting:
            with pytest.raises(NodeError) as refused:
                producer.started()
            assert refused.value.code == Code.UNAUTHORIZED
        assert len(gateway.log(topic)) == 4


def test_calls_over_tls(tmp_path: Path) -> None:
    authority, stranger = Authority.make(), Authority.make()
    key, chain = authority.issue("broker")
    files = {"key.pem": key, "chain.pem": chain, "ca.pem": authority.pem, "stranger.pem": stranger.pem}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    tls = TlsConfig(root_certificates=authority.pem)
    database, paths = f"sqlite:///{tmp_path / 'halfmq.db'}", {name: str(tmp_path / name) for name in files}
    served = {"tls_certificate": paths["chain.pem"], "tls_key": paths["key.pem"]}
    with (
        Gateway(database, tls=tls, **served) as gateway,
        NodeProcess(gateway.endpoint, {"NODE_EXTRA_CA_CERTS": paths["stranger.pem"]}, sslEnabled=True) as distrustful,
        NodeProcess(gateway.endpoint) as plain,
    ):
        topic, group = gateway.topic(), gateway.group()
        refused = [distrustful.begin_producer(topic), plain.begin_producer(topic)]
        for variable in ("NODE_EXTRA_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
            with NodeProcess(gateway.endpoint, {variable: paths["ca.pem"]}, sslEnabled=True) as node:
                producer = node.producer(topic, usual="commit")
                producer.send(topic, variable)
                producer.half(topic, f"checked, {variable}")
                simple = node.simple_consumer(group, topic)
                messages = simple.take(2)
                simple.ack(*messages)
                assert sorted(texts(messages)) == [variable, f"checked, {variable}"]
        for producer in refused:
            with pytest.raises(NodeError, match=r"UNAVAILABLE|DEADLINE_EXCEEDED"):
                producer.started()
        assert len(gateway.log(topic)) == 4


def test_namespaces_are_worlds_of_their_own(gateway: Gateway) -> None:
    name, group = unique("orders"), unique("shipping")
    for space in ("", "shop%", "books%"):
        gateway.admin.create_topic(f"{space}{name}", queues=2)
        gateway.admin.create_group(f"{space}{group}", max_attempts=2, retry_delays=[0.05])
    spaces = ("shop", "books")
    received: dict[str, list[NodeMessage]] = {}
    with NodeProcess(gateway.endpoint) as node:
        for space in spaces:
            producer = node.producer(name, namespace=space, verdicts={"checked": ["commit"]})
            consumer = node.push_consumer(group, name, namespace=space, outcomes={"poison": ["failure"]})
            for body in ("hello", space, "poison"):
                producer.send(name, body)
            producer.send(name, "grouped", message_group="a")
            producer.half(name, "checked")
            producer.commit(producer.half(name, "committed"))
            producer.roll_back(producer.half(name, "rolled back"))
            later = producer.send(name, "recalled", delay=3_600_000)
            assert producer.recall(name, later.recall_handle) == later.message_id
            bodies = ["checked", "committed", "grouped", "hello", "poison", space]
            received[space] = consumer.until(7)
            assert sorted(set(texts(received[space]))) == sorted(bodies)
            assert {message.topic for message in received[space]} == {name}
            gateway.until_settled(f"{space}%{group}", f"{space}%{name}")
            assert gateway.bodies(f"{space}%{name}") == sorted(bodies)
            # Its dead letters are in its namespace as well.
            assert gateway.dead_letters(f"{space}%{group}") == ["poison"]
            readers = gateway.admin.create_group(f"{space}%{unique('readers')}").name.partition("%")[2]
            simple = node.simple_consumer(readers, name, namespace=space)
            messages = simple.take(6)
            simple.change_invisible(messages[0], 0)
            simple.ack(*messages[1:], *simple.take(1))
            assert gateway.lag(f"{space}%{readers}", f"{space}%{name}") == 0
    assert gateway.log(name) == []


def test_handlers_that_fail_while_the_broker_is_away_get_their_messages_after_the_delay_of_the_group(
    tmp_path: Path,
) -> None:
    bodies = [f"order {number}" for number in range(8)]
    with Gateway(f"sqlite:///{tmp_path / 'halfmq.db'}") as gateway, NodeProcess(gateway.endpoint) as node:
        topic, group = gateway.topic(), gateway.group(retry_delays=[1])
        receipts = node.producer(topic).send_many(topic, bodies)
        consumer = node.push_consumer(group, topic, outcomes={body: ["hold", "success"] for body in bodies})
        node.until(lambda: len(consumer.deliveries) == 8)
        gateway.stop(kill=True)
        # The client says it again every second, each time by itself; and opens its telemetry stream every second.
        for message in consumer.messages:
            consumer.release(message, "failure")
            time.sleep(0.12)
        gateway.start()
        consumer.until(16)
        gateway.until_settled(group, topic)
        assert {message.attempt for message in consumer.messages[8:]} == {2}
        # As the broker tells it: given back once, and delivered again a second after that.
        for receipt in receipts:
            events = gateway.admin.timeline(own_id(receipt.message_id))
            given_back = [event.happened_at for event in events if event.type is TimelineEventType.NACKED]
            delivered = [event.happened_at for event in events if event.type is TimelineEventType.DELIVERED]
            assert (len(given_back), len(delivered)) == (1, 2)
            assert delivered[1] - given_back[0] > timedelta(seconds=0.99)
