"""What official producers send, and what official consumers get of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient


def test_a_message_comes_with_all_that_it_was_sent_with(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    began = time.time()
    producer = python.producer(broker.endpoint, topic)
    receipt = producer.send(
        topic,
        bytes(range(256)) + "grüezi 你好".encode(),
        tag="paid",
        keys=["order-1", "customer 7"],
        properties={"country": "CH", "note": "schön, 好", "amount": "12.50"},
    )
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    (message,) = consumer.receive()
    assert message.topic == topic
    assert message.body == bytes(range(256)) + "grüezi 你好".encode()
    assert message.tag == "paid"
    assert message.keys == {"order-1", "customer 7"}
    assert message.properties == {"country": "CH", "note": "schön, 好", "amount": "12.50"}
    assert message.message_id == receipt.message_id
    assert len(message.message_id) == 34
    assert message.message_type == "NORMAL"
    assert message.message_group is None
    assert message.born_host
    assert message.attempt == 1
    assert not message.corrupted
    assert began - 1 < message.born_at / 1000 <= message.sent_out_at / 1000 < time.time() + 1
    consumer.ack(message)
