"""Databases of users, and a broker, for tests of the fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.databases import LOCAL_KINDS
from ways.shops import Shop, make_shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from support.databases import LocalKind


@pytest.fixture(params=LOCAL_KINDS)
def kind(request: pytest.FixtureRequest) -> LocalKind:
    """The database of the local transactions."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def shop(kind: LocalKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A database with a table of orders."""
    with make_shop(kind, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker that asks soon; tests have topics of their own."""
    from producer_sdk.testing import embedded_broker

    with embedded_broker(first_check=0.3, check_interval=0.3) as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return f"orders-{abs(hash(request.node.nodeid)):x}"
