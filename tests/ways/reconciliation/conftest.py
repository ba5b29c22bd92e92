"""A shop with a table of sales, and a topic for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consumer_sdk import Admin
from ways.reconciliation.sales import TYPES

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop


@pytest.fixture
def sales(shop: Shop) -> Shop:
    """A shop with a table of sales."""
    with shop.engine.begin() as connection:
        columns = f"id INT PRIMARY KEY, amount DECIMAL(10, 2), at {TYPES[shop.kind]}"
        connection.exec_driver_sql(f"CREATE TABLE sales ({columns})")
    return shop


@pytest.fixture
def created(broker: EmbeddedBroker, topic: str) -> str:
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=2)
    return topic
