"""A broker with a console and something to show, and a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from console.shop import Shop, fill
from support.brokers import BrokerProcess
from support.chromium import need_chromium, open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = {"first_check": 0.2, "check_interval": 0.2, "max_checks": 2}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A broker with parked transactions, dead letters and clients, and its console."""
    database = f"sqlite:///{tmp_path_factory.mktemp('console') / 'halfmq.db'}"
    with BrokerProcess(database, console_listen="127.0.0.1:0", **TIMES) as broker, fill(broker) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    need_chromium()
    made = open_browser()
    yield made
    made.quit()
