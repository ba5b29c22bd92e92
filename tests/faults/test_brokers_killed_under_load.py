"""Brokers on one database are killed under load, one after the other; clients go to the one that is left.

HALFMQ_FAULT_KILLS is the number of kills (5; the full campaign is 500).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from faults.client import Client
from faults.history import judge
from faults.load import CHECKS, Load
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

KILLS = int(os.environ.get("HALFMQ_FAULT_KILLS") or 5)
COMMITS_BETWEEN_KILLS = 50
# Long against the leases of the load, and against every loop of a broker that wakes consumers.
QUIET = 10.0


@pytest.mark.timeout(600 + 10 * KILLS)
def test_nothing_is_lost_and_nothing_appears(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    brokers = [BrokerProcess(database, **CHECKS), BrokerProcess(database, **CHECKS)]
    try:
        with Load([broker.endpoint for broker in brokers], checked=True) as load:
            for number in range(KILLS):
                load.history.await_commits(COMMITS_BETWEEN_KILLS)
                broker = brokers[number % 2]
                broker.kill()
                broker.close()
                load.history.await_commits(COMMITS_BETWEEN_KILLS)
                brokers[number % 2] = BrokerProcess(database, listen=broker.endpoint, **CHECKS)
            load.history.await_commits(COMMITS_BETWEEN_KILLS)
        with Client(brokers[0].endpoint) as client:
            assert judge(load.history, load.finish(client)) == []
        assert load.history.acknowledged >= (2 * KILLS + 1) * COMMITS_BETWEEN_KILLS
        assert load.history.checked, "no commit came from a check"
        assert [broker.count("[error") for broker in brokers] == [0, 0]
    finally:
        for broker in brokers:
            broker.close()


@pytest.mark.parametrize("kind", ["mariadb"], indirect=True)
def test_nothing_comes_again_when_all_is_handled(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    broker = BrokerProcess(database, **CHECKS)
    try:
        with Load([broker.endpoint], checked=True) as load:
            load.history.await_commits(COMMITS_BETWEEN_KILLS)
            broker.kill()
            broker.close()
            broker = BrokerProcess(database, listen=broker.endpoint, **CHECKS)
            load.history.await_commits(COMMITS_BETWEEN_KILLS)
        with Client(broker.endpoint) as client:
            assert judge(load.history, load.finish(client)) == []
            assert client.pull(load.group, load.topic, wait=QUIET) == []
            assert client.log(f"%DLQ%{load.group}") == {0: []}
            assert judge(load.history, load.findings(client)) == []
        assert broker.count("[error") == 0, broker.log
    finally:
        broker.close()
