"""Databases of users, a broker and an outbox, for tests of the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk.outbox import Outbox, RelaySettings
from ways.shops import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker

QUICK = RelaySettings(poll=0.05, first_backoff=0.05, longest_backoff=0.2, decide_every=0.05)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker; tests have topics of their own."""
    from producer_sdk.testing import embedded_broker

    with embedded_broker() as made:
        yield made


@pytest.fixture
def outbox(shop: Shop) -> Outbox:
    """An outbox whose relay looks often."""
    made = Outbox(shop.engine, settings=QUICK)
    made.create_tables()
    return made
