"""Who may call: signatures by access keys, and TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin, TlsConfig
from support.certificates import Authority
from support.rocketmq import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient

GOOD = {"access_key": "shop", "secret_key": "a secret"}
REFUSED = [
    {"access_key": "shop", "secret_key": "another secret"},
    {"access_key": "unknown", "secret_key": "a secret"},
    {},
]


@pytest.fixture
def guarded(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> BrokerProcess:
    """A broker with a topic `orders` and a group `shop`, that wants signatures."""
    keys = tmp_path / "keys"
    keys.write_text("# access key and secret key\nshop:a secret\naudit:of:colons\n")
    broker = new_broker("sqlite", rocketmq_keys=keys)
    with Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
        admin.create_group("shop")
    return broker


def test_signed_calls_are_served(guarded: BrokerProcess, python: OfficialClient) -> None:
    producer = python.producer(guarded.endpoint, "orders", checker=lambda _: "COMMIT", **GOOD)
    consumer = python.push_consumer(guarded.endpoint, "shop", "orders", access_key="audit", secret_key="of:colons")
    producer.send("orders", "signed")
    producer.send_in_transaction("orders", "signed, too")
    consumer.received.await_text("signed")
    consumer.received.await_text("signed, too")


def test_calls_that_are_not_signed_well_are_refused(guarded: BrokerProcess, python: OfficialClient) -> None:
    for credentials in REFUSED:
        producer = python.producer(guarded.endpoint, **credentials)
        with pytest.raises(ClientError, match="failed to fetch topic"):  # The client tells only its log why.
            producer.send("orders", "not signed")
        with pytest.raises(ClientError) as refused:
            producer.recall("orders", "0102FC000000011BB90B14563B00000000")
        assert (refused.value.kind, refused.value.code) == ("UnauthorizedException", "UNAUTHORIZED")
        with pytest.raises(ClientError, match="failed to fetch topic"):
            python.simple_consumer(guarded.endpoint, "shop", "orders", **credentials).receive()
    with Admin(guarded.endpoint) as admin:
        assert list(admin.find_messages("orders")) == []
        assert admin.group_progress("shop") == []


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Path]:
    """The certificate of an authority, beside `key.pem` and `chain.pem` of a broker that it vouches for."""
    made = Authority.make()
    key, chain = made.issue("broker")
    for name, content in (("authority.pem", made.pem), ("key.pem", key), ("chain.pem", chain)):
        (tmp_path / name).write_bytes(content)
    return tmp_path / "authority.pem"


def test_clients_that_trust_the_brokers_certificate_speak_tls(
    authority: Path, new_broker: Callable[..., BrokerProcess], new_python: Callable[..., OfficialClient]
) -> None:
    folder = authority.parent
    broker = new_broker("sqlite", tls_certificate=folder / "chain.pem", tls_key=folder / "key.pem")
    with Admin(broker.endpoint, tls=TlsConfig(authority.read_bytes())) as admin:
        admin.create_topic("orders")
        admin.create_group("shop")
    python = new_python(GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(authority))
    producer = python.producer(broker.endpoint, "orders", checker=lambda _: "COMMIT", tls=True)
    producer.send("orders", "over TLS")
    producer.send_in_transaction("orders", "checked over TLS")
    pushed = python.push_consumer(broker.endpoint, "shop", "orders", tls=True)
    pushed.received.await_text("over TLS")
    pushed.received.await_text("checked over TLS")
    producer.send("orders", "one more")
    pushed.received.await_text("one more")
    with pytest.raises(ClientError, match="failed to fetch topic"):
        python.producer(broker.endpoint, tls=False).send("orders", "in the clear")


def test_a_client_that_does_not_trust_the_certificate_does_not_speak_to_the_broker(
    authority: Path, new_broker: Callable[..., BrokerProcess], python: OfficialClient
) -> None:
    folder = authority.parent
    broker = new_broker("sqlite", tls_certificate=folder / "chain.pem", tls_key=folder / "key.pem")
    with Admin(broker.endpoint, tls=TlsConfig(authority.read_bytes())) as admin:
        admin.create_topic("orders")
        producer = python.producer(broker.endpoint, tls=True)
        with pytest.raises(ClientError, match="failed to fetch topic"):
            producer.send("orders", "lost")
        assert list(admin.find_messages("orders")) == []
