"""Databases of users, a broker and an outbox, for tests of the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk.outbox import Outbox, RelaySettings
from support.databases import LOCAL_KINDS
from ways.shops import Shop, make_shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from support.databases import LocalKind

QUICK = RelaySettings(poll=0.05, first_backoff=0.05, longest_backoff=0.2, decide_every=0.05)


@pytest.fixture(params=LOCAL_KINDS)
def kind(request: pytest.FixtureRequest) -> LocalKind:
    """The database of the business transactions."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def shop(kind: LocalKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A database with a table of orders."""
    with make_shop(kind, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker; tests have topics of their own."""
    from producer_sdk.testing import embedded_broker

    with embedded_broker() as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return f"orders-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def outbox(shop: Shop) -> Outbox:
    """An outbox whose relay looks often."""
    made = Outbox(shop.engine, settings=QUICK)
    made.create_tables()
    return made
