"""RocketMQ's official clients for Java and Go: starting, sending, order, transactions, and brokers that are killed."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin
from support.certificates import Authority
from support.java_and_go import ClientFailed, OfficialProcess
from support.operators import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.brokers import BrokerProcess
    from support.java_and_go import Language


@pytest.fixture(params=["java", "go"])
def client(request: pytest.FixtureRequest) -> Iterator[OfficialProcess]:
    language: Language = request.param
    with OfficialProcess(language) as running:
        yield running


@pytest.fixture
def names(broker: BrokerProcess, unique: Callable[[str], str]) -> tuple[str, str]:
    """A topic with one queue, and a group."""
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(group)
    return topic, group


def test_messages_go_through(client: OfficialProcess, broker: BrokerProcess, names: tuple[str, str]) -> None:
    topic, group = names
    client.producer("p", broker.endpoint, topic)
    client.consumer("c", broker.endpoint, group, topic)
    ids = [client.send("p", topic, f"order {number}") for number in range(40)]
    assert len(set(ids)) == 40
    assert sorted(client.receive("c", 40)) == sorted(f"order {number}" for number in range(40))
    with Admin(broker.endpoint) as admin:
        assert sum(each.lag for each in admin.group_progress(group)) == 0


def test_a_message_group_keeps_its_order(
    client: OfficialProcess, broker: BrokerProcess, names: tuple[str, str]
) -> None:
    topic, group = names
    client.producer("p", broker.endpoint, topic)
    client.consumer("c", broker.endpoint, group, topic)
    for number in range(20):
        client.send("p", topic, f"{'ab'[number % 2]}{number}", group="ab"[number % 2])
    came = client.receive("c", 20)
    for each in "ab":
        assert [body for body in came if body[0] == each] == [
            f"{each}{number}" for number in range(20) if "ab"[number % 2] == each
        ]


def test_transactions_are_committed_rolled_back_and_asked_about(
    client: OfficialProcess, broker: BrokerProcess, names: tuple[str, str]
) -> None:
    topic, group = names
    client.producer("p", broker.endpoint, topic, verdict="COMMIT")
    client.consumer("c", broker.endpoint, group, topic)
    client.transact("p", topic, "committed", "COMMIT")
    client.transact("p", topic, "rolled back", "ROLLBACK")
    client.transact("p", topic, "asked about")
    with Operator(broker.endpoint) as operator:
        operator.await_undecided(topic, 0)
    assert sorted(client.receive("c", 2)) == ["asked about", "committed"]


def test_an_unknown_topic_is_told(client: OfficialProcess, broker: BrokerProcess, unique: Callable[[str], str]) -> None:
    with pytest.raises(ClientFailed, match=r"(?i)topic"):
        client.producer("p", broker.endpoint, unique("nowhere"))
        client.send("p", unique("nowhere"), "lost")


def test_a_group_that_is_not_there_is_named(
    client: OfficialProcess, broker: BrokerProcess, names: tuple[str, str], unique: Callable[[str], str]
) -> None:
    """Go's client waited for ever at its start, and Java's said that a task was cancelled."""
    group = unique("nobody")
    client.consumer("c", broker.endpoint, group, names[0])
    with pytest.raises(ClientFailed, match=group):
        client.receive_once("c", 1)


@pytest.mark.parametrize("language", ["java", "go"])
def test_clients_with_tls_and_without_use_one_port(
    language: Language, new_broker: Callable[..., BrokerProcess], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """As at RocketMQ's proxy: both speak TLS unless they are told otherwise."""
    for name, content in zip(("key.pem", "chain.pem"), Authority.make().issue("broker"), strict=True):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    broker = new_broker(
        "sqlite", tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem", tls_optional=True
    )
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(group)
    with OfficialProcess(language, tls=True) as secret, OfficialProcess(language) as plain:
        for client in (secret, plain):
            client.producer("p", broker.endpoint, topic, verdict="COMMIT")
            client.consumer("c", broker.endpoint, group, topic)
        secret.send("p", topic, "secret")
        plain.send("p", topic, "plain")
        secret.transact("p", topic, "asked about")
        assert sorted(plain.receive("c", 3)) == ["asked about", "plain", "secret"]
        plain.send("p", topic, "to the other one")
        assert secret.receive("c", 1) == ["to the other one"]


# Two brokers that are announced


@pytest.fixture
def announced(new_broker: Callable[..., BrokerProcess]) -> tuple[BrokerProcess, BrokerProcess]:
    """Two brokers on one database, each of which tells clients of both."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
    settings = {"rocketmq_endpoints": ",".join(addresses), "lease": 3}
    one = new_broker("mysql", broker_id="one", listen=addresses[0], **settings)
    return one, new_broker(one.database, broker_id="other", listen=addresses[1], **settings)


@pytest.mark.parametrize("killed", [0, 1])
def test_clients_start_and_go_on_while_one_of_two_brokers_is_down(
    client: OfficialProcess,
    announced: tuple[BrokerProcess, BrokerProcess],
    killed: int,
    unique: Callable[[str], str],
) -> None:
    """No client could start, and messages of a group that belonged to the dead one were refused for ever."""
    left = announced[1 - killed]
    topic, group = unique("orders"), unique("shop")
    with Admin(left.endpoint) as admin:
        admin.create_topic(topic, queues=4)
        admin.create_group(group)
    endpoints = f"{announced[0].endpoint};{announced[1].endpoint}"
    client.producer("before", endpoints, topic, verdict="COMMIT")
    client.consumer("before", endpoints, group, topic)
    sent = [
        client.send("before", topic, f"before {number}", group=f"g{number}") and f"before {number}"
        for number in range(8)
    ]
    announced[killed].kill()
    client.producer("after", left.endpoint, topic, verdict="COMMIT")
    client.consumer("after", left.endpoint, group, topic)
    failed = 0
    for number in range(24):
        name, body = ("before", "after")[number % 2], f"during {number}"
        try:
            client.send(name, topic, body, group=f"g{number}")
        except ClientFailed:
            failed += 1  # It was under way when the broker was killed.
        else:
            sent.append(body)
    assert failed <= 2
    client.transact("before", topic, "committed", "COMMIT")
    client.transact("after", topic, "asked about")
    with Operator(left.endpoint) as operator:
        operator.await_undecided(topic, 0)
    came: set[str] = set()
    wanted = {*sent, "committed", "asked about"}
    for _ in range(10):
        for name in ("before", "after"):
            came |= set(client.receive(name, 32, until=lambda: True))
        if wanted <= came:
            break
    assert wanted <= came
