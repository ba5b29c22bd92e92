"""Operators see which of RocketMQ's clients are connected."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from producer_sdk import ClientKind, ConnectedClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Admin
    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient


def until(admin: Admin, enough: Callable[[list[ConnectedClient]], bool], group: str) -> list[ConnectedClient]:
    """Clients of a group, once brokers have reported what is waited for."""
    ends = time.monotonic() + 30
    while not enough(found := list(admin.list_clients(group=group))):
        assert time.monotonic() < ends, found
        time.sleep(0.2)
    return found


def test_its_clients_are_listed_with_their_groups_and_topics(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    python.push_consumer(broker.endpoint, group, topic)
    python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    (reader,) = until(admin, lambda found: len(found) == 1, group)
    assert (reader.kind, reader.groups, reader.topics) == (ClientKind.CONSUMER, (group,), (topic,))
    assert reader.library.startswith("rocketmq-python/")
    assert reader.address.startswith(("127.0.0.1:", "[::1]:"))
    assert reader.credits is None
    # The producers of transactions on a topic are a group with its name.
    (seller,) = until(admin, lambda found: len(found) == 1, topic)
    assert (seller.kind, seller.topics) == (ClientKind.PRODUCER, (topic,))
