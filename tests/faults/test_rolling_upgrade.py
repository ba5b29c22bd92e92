"""Brokers of the release before are replaced by new ones, one by one, on one database and under load.

Clients send, prepare, commit, roll back, leave transactions to checks, and consume all the time.
Which release the former is: tests/support/previous_release.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from broker.storage.engine.connection import Database
from broker.storage.migrations import current, newest
from faults.client import Client
from faults.history import judge
from faults.load import CHECKS, Load
from support.brokers import BrokerProcess
from support.command import run
from support.patience import HANG
from support.previous_release import PreviousBroker, previous_release, start_previous, start_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMITS = 60
"""On each mixture of brokers."""
STOPPED = 0
REFUSED = 2


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
        _, said = old.communicate(timeout=HANG)
    assert old.returncode == REFUSED, said
    assert "upgrade the broker" in said


def test_programs_of_the_former_release_work_with_new_brokers(
    kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    """Its examples as they are: a producer with a fence, and a consumer."""
    with BrokerProcess(fresh_database(kind), auto_create=True, **CHECKS) as broker:
        shop = f"sqlite:///{tmp_path / 'shop.db'}"
        for order in ("three apples", "a pear"):
            with start_program("examples/producer.py", broker.endpoint, order, shop) as producer:
                told, said = producer.communicate(timeout=HANG)
            assert (producer.returncode, told) == (0, "COMMITTED\n"), said
        with start_program("-u", "examples/consumer.py", broker.endpoint) as consumer:
            assert consumer.stdout is not None
            # Of different queues: in any order.
            assert {consumer.stdout.readline() for _ in range(2)} == {"three apples\n", "a pear\n"}
            consumer.terminate()
            assert consumer.wait(60) == 0
        assert broker.count("[error") == 0, broker.log


def test_new_programs_work_with_brokers_of_the_former_release(
    kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    """Whoever upgrades programs first: what a former broker does not know is said, and the rest works."""
    with PreviousBroker(fresh_database(kind), auto_create=True, **CHECKS) as old:
        producer = [str(EXAMPLES / "producer.py"), old.endpoint, "an apple", f"sqlite:///{tmp_path / 'shop.db'}"]
        done = subprocess.run([sys.executable, *producer], capture_output=True, text=True, timeout=HANG, check=False)
        assert done.stdout == "COMMITTED\n", done.stderr
        variables = {"HALFMQ_ENDPOINT": old.endpoint}
        status = run("admin", "status", variables=variables)
        assert status.returncode == 0, status.stderr
        assert "does not know the call" in status.stdout
        pending = run("admin", "tx", "list", "--json", variables=variables)
        assert (pending.returncode, pending.stdout) == (0, ""), pending.stderr
        topics = run("admin", "topic", "list", "--json", variables=variables)
        assert '"name": "orders"' in topics.stdout, topics.stderr
        refused = run("admin", "clients", variables=variables)
        assert refused.returncode == 1
        assert "UNIMPLEMENTED" in refused.stderr
