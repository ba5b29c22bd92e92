"""`halfmq serve --workers N`: brokers that share an address, while some of them, or their parent, are killed."""

from __future__ import annotations

import os
import queue
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faults.client import Client, unique
from faults.history import judge
from faults.load import CHECKS, Load
from faults.sites import rounds
from halfmq.v1 import transaction_pb2
from support.brokers import BrokerProcess
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import Kind

WORKERS = 3
PATIENCE = 30.0

pytestmark = pytest.mark.timeout(120 + 60 * rounds(1))


@pytest.fixture
def broker(kind: Kind, fresh_database: Callable[[Kind], str]) -> Iterator[BrokerProcess]:
    with BrokerProcess(fresh_database(kind), workers=WORKERS, broker_id="box", **CHECKS) as made:
        yield made


def workers_of(broker: BrokerProcess) -> list[int]:
    """Process numbers of the workers that are there."""
    parent = broker.process.pid
    return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_that(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def names_of(endpoint: str, connections: int) -> set[str]:
    """The names of the brokers that so many connections reach."""
    names = set()
    with ExitStack() as stack:
        for _ in range(connections):
            client = stack.enter_context(Client(endpoint))
            requests: queue.SimpleQueue[transaction_pb2.CheckTransactionsRequest | None] = queue.SimpleQueue()
            register = transaction_pb2.RegisterProducer(producer_group=unique("g"))
            requests.put(transaction_pb2.CheckTransactionsRequest(register=register))
            names.add(next(client._transactions.CheckTransactions(iter(requests.get, None))).registered.broker_id)
            requests.put(None)
    return names


def test_connections_are_spread(broker: BrokerProcess) -> None:
    assert len(workers_of(broker)) == WORKERS
    assert names_of(broker.endpoint, 40) == {f"box-{number}" for number in range(1, WORKERS + 1)}
    processes = workers_of(broker)
    assert broker.stop() == 0, broker.log
    assert not any(map(runs, processes))
    assert broker.count("stopped") == WORKERS
    assert broker.count("[error") == 0, broker.log


def test_workers_are_killed_under_load(broker: BrokerProcess) -> None:
    """What was acknowledged is there, nothing is released twice, checks are answered, and the workers come back."""
    with Load([broker.endpoint], tasks=8, checked=True) as load:
        for victim in range(2):
            load.history.await_commits(100 * (victim + 1))
            before = workers_of(broker)
            os.kill(before[victim], signal.SIGKILL)
            await_that(
                lambda before=before: len(set(workers_of(broker)) - set(before)) == 1,  # type: ignore[misc]
                "the worker was not replaced",
            )
            await_that(lambda victim=victim: broker.count("serves") == WORKERS + victim + 1, "it does not serve")  # type: ignore[misc]
        load.history.await_commits(400)
    with Client(broker.endpoint) as client:
        assert judge(load.history, load.finish(client)) == []
    assert not load.errors, load.errors
    assert broker.count("ended (SIGKILL)") == 2
    assert len(names_of(broker.endpoint, 40)) == WORKERS


def test_they_end_with_their_parent(broker: BrokerProcess) -> None:
    processes = workers_of(broker)
    broker.kill()
    await_that(lambda: not any(map(runs, processes)), "workers without a parent go on")


def test_a_worker_that_hangs_is_killed_in_the_end(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    with BrokerProcess(fresh_database(kind), workers=2, drain=0) as broker:
        processes = workers_of(broker)
        os.kill(processes[0], signal.SIGSTOP)
        assert broker.stop() == 1
        assert not any(map(runs, processes))
        assert broker.count("did not end within") == 1


class TestWrongSettings:
    @pytest.fixture
    def database(self, kind: Kind, fresh_database: Callable[[Kind], str]) -> str:
        return fresh_database(kind)

    def test_an_address_in_use(self, database: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            listen = f"127.0.0.1:{other.getsockname()[1]}"
            refusal = run_serve(f"--listen={listen}", "--workers=2", HALFMQ_DATABASE=database)
        refusal.names("listen", listen, "another process")

    def test_an_address_of_other_workers(self, database: str) -> None:
        with BrokerProcess(database, workers=2) as broker:
            refusal = run_serve(f"--listen={broker.endpoint}", "--workers=2", HALFMQ_DATABASE=database)
        refusal.names("listen", broker.endpoint, "another process")

    def test_a_database_for_one_broker(self, tmp_path: Path) -> None:
        refusal = run_serve("--workers=2", HALFMQ_DATABASE=f"sqlite:///{tmp_path}/own.db")
        refusal.names("workers", "embedded database", "MySQL or MariaDB")

    def test_what_a_worker_refuses_is_told_once(self, database: str) -> None:
        refusal = run_serve("--workers=3", HALFMQ_DATABASE=f"{database}_gone")
        refusal.names("database", "_gone")
