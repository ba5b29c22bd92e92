"""The database server is killed under load and started again, on a server of the test's own.

HALFMQ_FAULT_KILLS is the number of kills (3; the full campaign is 500).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from faults.client import Client
from faults.history import judge
from faults.load import CHECKS, Load
from support.brokers import BrokerProcess
from support.command import run
from support.databases import KINDS, connect, create_database
from support.private_servers import PrivateServer
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = int(os.environ.get("HALFMQ_FAULT_KILLS") or 3)
COMMITS_BETWEEN_KILLS = 100


@pytest.fixture(params=KINDS, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    with PrivateServer(request.param, tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.mark.timeout(600 + 20 * KILLS)
def test_nothing_acknowledged_is_lost(server: PrivateServer) -> None:
    database = create_database(server.url)
    # Little patience: some calls must fail while the server is away, instead of waiting for it.
    with BrokerProcess(database, reconnect_timeout=0.1, **CHECKS) as broker:
        with Load([broker.endpoint], checked=True) as load:
            kills = 0
            # A kill may hit no call.
            while kills < KILLS or not load.history.unanswered:
                assert kills < KILLS + 20, "every call of the load had its answer"
                load.history.await_commits(COMMITS_BETWEEN_KILLS)
                server.kill()
                server.start()
                kills += 1
            load.history.await_commits(COMMITS_BETWEEN_KILLS)
        with Client(broker.endpoint) as client:
            assert judge(load.history, load.finish(client)) == []
        assert load.history.acknowledged >= (KILLS + 1) * COMMITS_BETWEEN_KILLS
        assert load.history.checked, "no commit came from a check"
        assert broker.count("[error") == 0, broker.log


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_the_judge_sees_what_an_unsafe_database_loses(server: PrivateServer) -> None:
    """The proof of the test above: with durability off, the same load and the same kill lose acknowledged commits."""
    database = create_database(server.url)
    with BrokerProcess(database, allow_unsafe_database=True) as broker, Load([broker.endpoint]) as load:
        # Only now: the topic, or all tables, would be lost as well on a quick machine.
        set_flush(server, 0)
        load.history.await_commits(2 * COMMITS_BETWEEN_KILLS)
        server.kill()
        load.stop_consuming()
        load.stop_producing()
    server.start()
    # The database has lost what brokers know of: the former one may have noticed, and no other starts before this.
    told = run("restored", variables={"HALFMQ_DATABASE": database})
    assert told.returncode == 0, told.stderr
    with BrokerProcess(database, allow_unsafe_database=True) as broker, Client(broker.endpoint) as client:
        wrong = judge(load.history, load.findings(client))
    assert any("commit ok" in each for each in wrong), wrong


@pytest.mark.parametrize("flush", [0, 2])
def test_a_server_that_would_lose_commits_is_refused(server: PrivateServer, flush: int) -> None:
    database = create_database(server.url)
    set_flush(server, flush)
    try:
        refused = run_serve("--database", database)
    finally:
        set_flush(server, 1)
    refused.names("database", f"innodb_flush_log_at_trx_commit is {flush}", "set it to 1")


def set_flush(server: PrivateServer, value: int) -> None:
    with connect(server.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {value}")
