"""Brokers of the release before are replaced by new ones, one by one, on one database and under load.

Clients send, prepare, commit, roll back, leave transactions to checks, and consume all the time.
Which release the former is: tests/support/previous_release.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.storage.engine.connection import Database
from broker.storage.migrations import current, newest
from faults.client import Client
from faults.history import judge
from faults.load import CHECKS, Load
from support.brokers import BrokerProcess
from support.command import run
from support.previous_release import PreviousBroker, previous_release, start_previous

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

COMMITS = 60
"""On each mixture of brokers."""
STOPPED = 0
REFUSED = 2

pytestmark = pytest.mark.timeout(300)


def version(database: str) -> str | None:
    opened = Database(database)
    try:
        return current(opened)
    finally:
        opened.close()


def version_of_the_former_release() -> str:
    folder = previous_release() / "broker" / "storage" / "migrations" / "versions"
    return max(file.name[:4] for file in folder.glob("[0-9]*.py"))


def test_brokers_are_replaced_one_by_one(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database(kind)
    brokers: list[BrokerProcess] = [PreviousBroker(database, **CHECKS), PreviousBroker(database, **CHECKS)]
    ended: list[BrokerProcess] = []
    before = version(database)
    try:
        with Load([broker.endpoint for broker in brokers], checked=True) as load:
            load.history.await_commits(COMMITS)
            for number in range(2):
                old = brokers[number]
                assert old.stop() == STOPPED, old.log
                ended.append(old)
                # Its start upgrades the tables, while the other broker of the former release is at work.
                brokers[number] = BrokerProcess(database, listen=old.endpoint, **CHECKS)
                load.history.await_commits(COMMITS)
        assert before == version_of_the_former_release()
        assert version(database) == newest()
        with Client(brokers[0].endpoint) as client:
            assert judge(load.history, load.finish(client)) == []
        assert load.history.acknowledged >= 3 * COMMITS
        assert load.history.checked, "no commit came from a check"
        assert load.contradictions == []
    finally:
        for broker in (*brokers, *ended):
            broker.close()
    for broker in (*brokers, *ended):
        assert broker.count("[error") == 0, broker.log


def test_tables_are_upgraded_first_and_brokers_that_run_go_on(
    kind: Kind, fresh_database: Callable[[Kind], str]
) -> None:
    database = fresh_database(kind)
    with PreviousBroker(database, **CHECKS) as old:
        with Load([old.endpoint], checked=True) as load:
            load.history.await_commits(COMMITS)
            migrated = run("migrate", variables={"HALFMQ_DATABASE": database})
            assert migrated.returncode == 0, migrated.stderr
            assert version(database) == newest()
            load.history.await_commits(COMMITS)
        with Client(old.endpoint) as client:
            assert judge(load.history, load.finish(client)) == []
        assert old.stop() == STOPPED, old.log
    assert old.count("[error") == 0, old.log


def test_a_broker_of_the_former_release_does_not_start_on_upgraded_tables(
    kind: Kind, fresh_database: Callable[[Kind], str]
) -> None:
    database = fresh_database(kind)
    assert run("migrate", variables={"HALFMQ_DATABASE": database}).returncode == 0
    with start_previous("serve", "--listen=127.0.0.1:0", variables={"HALFMQ_DATABASE": database}) as old:
        _, said = old.communicate(timeout=60)
    assert old.returncode == REFUSED, said
    assert "upgrade the broker" in said
