"""Official clients on compressed topics: the same bodies, whoever sends and whoever receives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from consumer_sdk import Consumer
from producer_sdk import Compression, Producer
from support.gateways import eventually
from support.stored_bodies import packed_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Admin
    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient


def order(number: int) -> bytes:
    return json.dumps([{"order": number, "product_id": line, "quantity": 1} for line in range(30)]).encode()


def test_official_clients_send_check_and_receive(
    broker: BrokerProcess, python: OfficialClient, group: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    topic = admin.create_topic(unique("packed"), compression=Compression.ZSTD).name
    checked: list[Any] = []

    def check(message: Any) -> str:
        checked.append(bytes(message.body))
        return "COMMIT"

    producer = python.producer(broker.endpoint, topic, checker=check)
    for number in range(3):
        producer.send(topic, order(number))
    producer.send_in_transaction(topic, order(3)).commit()
    producer.send_in_transaction(topic, order(4))
    assert eventually(lambda: checked) == [order(4)]
    with Producer(broker.endpoint) as own:
        own.send(topic, order(5))
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    received = consumer.receive_all(6)
    assert sorted(each.body for each in received) == [order(number) for number in range(6)]
    assert not any(each.corrupted for each in received), "their digests are those of the bodies"
    assert packed_messages(broker, topic) == (6, 6)
    # And by halfmq's consumer, from the beginning.
    readers = unique("readers")
    admin.create_group(readers, start="earliest")
    with Consumer(broker.endpoint, readers, topic) as mine:
        found: list[bytes] = []
        while len(found) < 6:
            for message in mine.receive(10, timeout=30):
                found.append(message.body)
                message.ack()
    assert sorted(found) == [order(number) for number in range(6)]
