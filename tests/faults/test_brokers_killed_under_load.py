"""Two brokers on one database; one after the other is killed under load, and clients go to the one that is left.

HALFMQ_FAULT_KILLS is the number of kills (5; the full campaign is 500).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from faults.client import Client
from faults.history import judge
from faults.load import Load
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

KILLS = int(os.environ.get("HALFMQ_FAULT_KILLS") or 5)
COMMITS_BETWEEN_KILLS = 50


@pytest.mark.timeout(300 + 10 * KILLS)
def test_nothing_is_lost_and_nothing_appears(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    brokers = [BrokerProcess(database), BrokerProcess(database)]
    try:
        with Load([broker.endpoint for broker in brokers]) as load:
            for number in range(KILLS):
                load.history.await_commits(COMMITS_BETWEEN_KILLS)
                broker = brokers[number % 2]
                broker.kill()
                broker.close()
                load.history.await_commits(COMMITS_BETWEEN_KILLS)
                brokers[number % 2] = BrokerProcess(database, listen=broker.endpoint)
            load.history.await_commits(COMMITS_BETWEEN_KILLS)
        with Client(brokers[0].endpoint) as client:
            assert judge(load.history, load.finish(client)) == []
        assert load.history.acknowledged >= (2 * KILLS + 1) * COMMITS_BETWEEN_KILLS
        assert [broker.count("[error") for broker in brokers] == [0, 0]
    finally:
        for broker in brokers:
            broker.close()
